package credentials_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/secrets/credentials"
	"github.com/agentformation/service/pkg/formation/store"
	"github.com/agentformation/service/pkg/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "ghp_0123456789abcdefghij"

// home is a state directory with its store and credentials.
type home struct {
	dir   string
	db    *store.DB
	mu    sync.Mutex // guards known
	known []string
	ids   atomic.Int64
}

func newHome(t *testing.T) *home {
	t.Helper()
	h := &home{dir: t.TempDir()}
	var err error
	h.db, err = store.Open(t.Context(), store.Config{Path: filepath.Join(h.dir, "memory.db"), LaunchID: "one", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.db.Close() })
	return h
}

func (h *home) open(settings manifest.UserCredentials, links map[string]manifest.Link) *credentials.Store {
	return credentials.Open(credentials.Config{
		DB: h.db, StateDir: h.dir, Settings: settings, Links: links,
		Known: func(values ...string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.known = append(h.known, values...)
		},
		NewID: func(prefix string) string { return fmt.Sprintf("%s%d", prefix, h.ids.Add(1)) },
	})
}

func add(t *testing.T, s *credentials.Store, user, service, name, object string) credentials.Credential {
	t.Helper()
	c, err := s.Create(t.Context(), credentials.New{User: user, Service: service, Name: name, Object: json.RawMessage(object)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCreate_ShowsAPreviewAndNeverTheValue(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	s := h.open(manifest.UserCredentials{EncryptionSalt: "salt"}, nil)
	for name, c := range map[string]struct{ object, want string }{
		"token first":        {`{"password":"not-this-one-at-all","token":"` + token + `"}`, "ghp_012*****hij"},
		"access token":       {`{"secret":"not-this-one-at-all","access_token":"` + token + `"}`, "ghp_012*****hij"},
		"case of the name":   {`{"user":"not-this-one-at-all","API_KEY":"` + token + `"}`, "ghp_012*****hij"},
		"first text":         {`{"n":5,"pat":"` + token + `","other":"not-this-one-at-all"}`, "ghp_012*****hij"},
		"short":              {`{"token":"12345678901234"}`, "***redacted***"},
		"fifteen":            {`{"token":"123456789012345"}`, "1234567*****345"},
		"characters":         {`{"token":"äöüäöüäöüäöüäöü"}`, "äöüäöüä*****äöü"},
		"empty text is none": {`{"token":"","key":"` + token + `"}`, "ghp_012*****hij"},
	} {
		t.Run(name, func(t *testing.T) {
			got := add(t, s, "u", "github", name, c.object)
			if got.Preview != c.want {
				t.Errorf("preview %q, want %q", got.Preview, c.want)
			}
			again, err := s.Get(t.Context(), "u", got.ID)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, again); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCreate_RefusesWhatIsNoCredential(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	s := h.open(manifest.UserCredentials{}, nil)
	for name, c := range map[string]struct {
		in   credentials.New
		kind fault.Kind
		code string
	}{
		"space":         {credentials.New{Service: "git hub", Object: []byte(`{"token":"x"}`)}, fault.Invalid, "VALIDATION_ERROR"},
		"no service":    {credentials.New{Object: []byte(`{"token":"x"}`)}, fault.Invalid, "VALIDATION_ERROR"},
		"long service":  {credentials.New{Service: strings.Repeat("s", 65), Object: []byte(`{"token":"x"}`)}, fault.Invalid, "VALIDATION_ERROR"},
		"control":       {credentials.New{Service: "git\x00hub", Object: []byte(`{"token":"x"}`)}, fault.Invalid, "VALIDATION_ERROR"},
		"long name":     {credentials.New{Service: "x", Name: strings.Repeat("s", 129), Object: []byte(`{"token":"x"}`)}, fault.Invalid, "VALIDATION_ERROR"},
		"no text":       {credentials.New{Service: "x", Object: []byte(`{"n":1,"o":{"token":"x"}}`)}, fault.Unprocessable, ""},
		"empty":         {credentials.New{Service: "x", Object: []byte(`{}`)}, fault.Unprocessable, ""},
		"nothing":       {credentials.New{Service: "x"}, fault.Unprocessable, ""},
		"list":          {credentials.New{Service: "x", Object: []byte(`["token"]`)}, fault.Unprocessable, ""},
		"broken":        {credentials.New{Service: "x", Object: []byte(`{"token":"` + token)}, fault.Unprocessable, ""},
		"more than one": {credentials.New{Service: "x", Object: []byte(`{"token":"x"}{"token":"y"}`)}, fault.Unprocessable, ""},
		"large":         {credentials.New{Service: "x", Object: []byte(`{"token":"` + strings.Repeat("x", 16<<10) + `"}`)}, fault.TooLarge, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.in.User = "u"
			_, err := s.Create(t.Context(), c.in)
			if fault.KindOf(err) != c.kind || fault.NameOf(err) != c.code {
				t.Errorf("%v %s: %v", fault.KindOf(err), fault.NameOf(err), err)
			}
			if strings.Contains(fmt.Sprint(err), token) {
				t.Errorf("the error quotes the value: %v", err)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(h.dir, credentials.KeyFile)); err == nil {
		t.Error("a key was made for nothing")
	}
}

func TestCreate_NumbersNamesAndRefusesTheSame(t *testing.T) {
	t.Parallel()
	s := newHome(t).open(manifest.UserCredentials{}, nil)
	var names []string
	for _, name := range []string{"", "", "work", ""} {
		names = append(names, add(t, s, "u", "GitHub", name, `{"token":"x"}`).Name)
	}
	if diff := cmp.Diff([]string{"github", "github 2", "work", "github 3"}, names); diff != "" {
		t.Error(diff)
	}
	_, err := s.Create(t.Context(), credentials.New{User: "u", Service: "github", Name: "work", Object: []byte(`{"token":"y"}`)})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("a second account of one name: %v", err)
	}
	add(t, s, "u", "gitlab", "work", `{"token":"y"}`)
	add(t, s, "other", "github", "work", `{"token":"y"}`)
}

func TestCreate_HasALimitPerUser(t *testing.T) {
	t.Parallel()
	s := newHome(t).open(manifest.UserCredentials{}, nil)
	for i := range credentials.MaxPerUser {
		add(t, s, "u", fmt.Sprint("s", i), "", `{"token":"x"}`)
	}
	_, err := s.Create(t.Context(), credentials.New{User: "u", Service: "more", Object: []byte(`{"token":"y"}`)})
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("over the limit: %v", err)
	}
	add(t, s, "other", "more", "", `{"token":"x"}`)
}

func TestStore_KeepsUsersApart(t *testing.T) {
	t.Parallel()
	s := newHome(t).open(manifest.UserCredentials{}, nil)
	mine := add(t, s, "me", "github", "", `{"token":"`+token+`"}`)
	second := add(t, s, "me", "github", "", `{"token":"x"}`)
	if _, err := s.Get(t.Context(), "you", mine.ID); fault.KindOf(err) != fault.NotFound {
		t.Errorf("another user reads it: %v", err)
	}
	if err := s.Delete(t.Context(), "you", mine.ID); fault.KindOf(err) != fault.NotFound {
		t.Errorf("another user deletes it: %v", err)
	}
	if list, err := s.List(t.Context(), "you"); err != nil || len(list) != 0 {
		t.Errorf("another user lists %v, %v", list, err)
	}
	if _, err := s.Resolve(t.Context(), "you", "github"); fault.NameOf(err) != "CREDENTIAL_REQUIRED" {
		t.Errorf("another user uses it: %v", err)
	}
	if err := s.Delete(t.Context(), "me", mine.ID); err != nil {
		t.Fatal(err)
	}
	list, err := s.List(t.Context(), "me")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]credentials.Credential{second}, list); diff != "" {
		t.Errorf("deleting one took more: %s", diff)
	}
}

func TestStore_KeepsValuesSealedAtRest(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	s := h.open(manifest.UserCredentials{}, nil)
	add(t, s, "u", "github", "", `{"user":"octocat-the-user","token":"`+token+`"}`)
	add(t, s, "u", "github", "", `{"user":"octocat-the-user","token":"`+token+`"}`)
	if err := h.db.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(h.dir, credentials.KeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info, err)
	}
	files, err := filepath.Glob(filepath.Join(h.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{token, token[:7], "octocat"} {
			if bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s holds %s", name, secret)
			}
		}
	}
}

func TestStore_TiesARowToItsUserServiceAndID(t *testing.T) {
	t.Parallel()
	for _, change := range []string{
		`UPDATE user_credentials SET user_id = 'you' WHERE user_id = 'me'`,
		`UPDATE user_credentials SET user_id = 'you', service = 'gitlab' WHERE user_id = 'me'`,
		`UPDATE user_credentials SET user_id = 'you', id = 'cred_x' WHERE user_id = 'me'`,
		`UPDATE user_credentials SET user_id = 'you', sealed = substr(sealed, 1, 20)`,
		`UPDATE user_credentials SET user_id = 'you', sealed = x''`,
	} {
		h := newHome(t)
		s := h.open(manifest.UserCredentials{}, nil)
		add(t, s, "me", "github", "", `{"token":"`+token+`"}`)
		if err := h.db.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(change)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		list, err := s.List(t.Context(), "you")
		if err != nil || len(list) != 1 || list[0].Preview != "***redacted***" {
			t.Errorf("%s: list %v, %v", change, list, err)
			continue
		}
		value, err := s.Resolve(t.Context(), "you", list[0].Service)
		if fault.NameOf(err) != "CREDENTIALS_ERROR" || value != "" {
			t.Errorf("%s: %q, %v", change, value, err)
		}
	}
}

func TestStore_OpensWithItsKeyAlone(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	first := h.open(manifest.UserCredentials{EncryptionKey: "the first key", EncryptionSalt: "salt"}, nil)
	add(t, first, "u", "github", "", `{"token":"`+token+`"}`)
	if _, err := os.Stat(filepath.Join(h.dir, credentials.KeyFile)); err == nil {
		t.Error("a key was generated beside the manifest's")
	}
	for name, c := range map[string]struct {
		settings manifest.UserCredentials
		code     string
	}{
		"the same":      {manifest.UserCredentials{EncryptionKey: "the first key", EncryptionSalt: "salt"}, ""},
		"another key":   {manifest.UserCredentials{EncryptionKey: "another key", EncryptionSalt: "salt"}, "CREDENTIALS_ERROR"},
		"another salt":  {manifest.UserCredentials{EncryptionKey: "the first key", EncryptionSalt: "pepper"}, "CREDENTIALS_ERROR"},
		"none any more": {manifest.UserCredentials{EncryptionSalt: "salt"}, "CREDENTIALS_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			value, err := h.open(c.settings, nil).Resolve(t.Context(), "u", "github")
			if fault.NameOf(err) != c.code && err != nil || (err == nil) != (value == token) || (c.code == "") != (err == nil) {
				t.Errorf("%q, %v", value, err)
			}
		})
	}
}

func TestStore_OpensWhatWasSealedBeforeItGotAKey(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	add(t, h.open(manifest.UserCredentials{}, nil), "u", "github", "", `{"token":"`+token+`"}`)
	later := h.open(manifest.UserCredentials{EncryptionKey: "the first key"}, nil)
	if value, err := later.Resolve(t.Context(), "u", "github"); value != token || err != nil {
		t.Errorf("%q, %v", value, err)
	}
}

func TestStore_TellsValuesBeforeTheyAreUsed(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	settings := manifest.UserCredentials{EncryptionKey: "key"}
	add(t, h.open(settings, nil), "u", "github", "", `{"user":"octocat","client_secret":"a-second-secret","token":"`+token+`"}`)
	want := []string{token, "a-second-secret", token}
	if diff := cmp.Diff(want, h.known); diff != "" {
		t.Errorf("at creation: %s", diff)
	}
	h.known = nil
	if _, err := h.open(settings, nil).Resolve(t.Context(), "u", "github"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, h.known); diff != "" {
		t.Errorf("at use: %s", diff)
	}
}

func TestResolve_SendsAUserWithoutACredentialToTheLink(t *testing.T) {
	t.Parallel()
	links := map[string]manifest.Link{
		"github":               {URL: "https://example.com/github", Hint: "It takes a minute"},
		credentials.PortalLink: {Label: "Your accounts", URL: "https://example.com/accounts"},
	}
	for name, c := range map[string]struct {
		service  string
		settings manifest.UserCredentials
		links    map[string]manifest.Link
		want     chat.Answer
	}{
		"own link": {"GitHub", manifest.UserCredentials{RedirectMessage: "Go there."}, links, chat.Answer{
			Content: "Go there.",
			Widgets: []chat.Widget{{Type: "action_link", Label: "Connect github", URL: "https://example.com/github", Hint: "It takes a minute"}},
		}},
		"portal": {"jira", manifest.UserCredentials{RedirectMessage: "Go there."}, links, chat.Answer{
			Content: "Go there.",
			Widgets: []chat.Widget{{Type: "action_link", Label: "Your accounts", URL: "https://example.com/accounts"}},
		}},
		"no link": {"jira", manifest.UserCredentials{}, nil, chat.Answer{
			Content: "This needs your own access to jira, which you have not given yet. Please add your jira credentials and ask again.",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newHome(t).open(c.settings, c.links).Resolve(t.Context(), "u", c.service)
			need, ok := errors.AsType[*credentials.NeedError](fmt.Errorf("connect: %w", err))
			if !ok || fault.NameOf(err) != "CREDENTIAL_REQUIRED" {
				t.Fatalf("%v", err)
			}
			if diff := cmp.Diff(c.want, need.Answer()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestResolve_AsksWhichOfSeveralAccountsAndRemembersForTheSession(t *testing.T) {
	t.Parallel()
	s := newHome(t).open(manifest.UserCredentials{}, nil)
	add(t, s, "u", "github", "Work", `{"token":"of work"}`)
	home := add(t, s, "u", "github", "Home", `{"token":"of home"}`)
	ctx := credentials.WithSession(t.Context(), "sess_1")
	_, err := s.Resolve(ctx, "u", "github")
	need, ok := errors.AsType[*credentials.NeedError](err)
	if !ok || fault.NameOf(err) != "CREDENTIAL_CHOICE_REQUIRED" || need.Answer().Question == nil {
		t.Fatalf("%v", err)
	}
	q := need.Answer().Question
	var labels []string
	for _, o := range q.Options {
		labels = append(labels, o.Label)
	}
	if diff := cmp.Diff([]string{"Work", "Home"}, labels); diff != "" || need.Answer().Content != q.Prompt+"\n\n1. Work\n2. Home" {
		t.Errorf("%+v %s", q, diff)
	}
	for _, no := range []string{"", "what is the weather?", "cred_99"} {
		if ok, err := s.Choose(ctx, "u", "sess_1", q, no); ok || err != nil {
			t.Errorf("%q is taken for a choice: %v", no, err)
		}
	}
	for _, yes := range []string{"work", " Home ", home.ID} {
		if ok, err := s.Choose(ctx, "u", "sess_1", q, yes); !ok || err != nil {
			t.Errorf("%q is no choice: %v", yes, err)
		}
	}
	if value, err := s.Resolve(ctx, "u", "github"); value != "of home" || err != nil {
		t.Errorf("after the choice: %q, %v", value, err)
	}
	if _, err := s.Resolve(credentials.WithSession(t.Context(), "sess_2"), "u", "github"); fault.NameOf(err) != "CREDENTIAL_CHOICE_REQUIRED" {
		t.Errorf("another session: %v", err)
	}
	if err := s.Delete(ctx, "u", home.ID); err != nil {
		t.Fatal(err)
	}
	if value, err := s.Resolve(ctx, "u", "github"); value != "of work" || err != nil {
		t.Errorf("when one is left: %q, %v", value, err)
	}
	if ok, err := s.Choose(ctx, "u", "sess_1", q, "Home"); ok || err != nil {
		t.Errorf("a deleted one is chosen: %v", err)
	}
}

func TestChoose_IsForgottenWithItsSession(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	s := h.open(manifest.UserCredentials{}, nil)
	const session = "sess_1" // each user has one of that name
	write := func(query string, args ...any) {
		t.Helper()
		if err := h.db.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.Exec(query, args...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range []string{"ann", "bob"} {
		add(t, s, user, "github", "Work", `{"token":"of work"}`)
		chosen := add(t, s, user, "github", "Home", `{"token":"of home"}`)
		write(`INSERT INTO sessions (user_id, session_id, created_at, last_activity) VALUES (?, ?, 1, 1)`, user, session)
		_, err := s.Resolve(credentials.WithSession(t.Context(), session), user, "github")
		need, ok := errors.AsType[*credentials.NeedError](err)
		if !ok {
			t.Fatal(err)
		}
		if ok, err := s.Choose(t.Context(), user, session, need.Answer().Question, chosen.ID); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	write(`DELETE FROM sessions WHERE user_id = ?`, "ann")
	ctx := credentials.WithSession(t.Context(), session)
	if _, err := s.Resolve(ctx, "ann", "github"); fault.NameOf(err) != "CREDENTIAL_CHOICE_REQUIRED" {
		t.Errorf("the choice of a session that is gone: %v", err)
	}
	if value, err := s.Resolve(ctx, "bob", "github"); value != "of home" || err != nil {
		t.Errorf("another user's session of that name: %q, %v", value, err)
	}
}

func TestExpander_GivesSecretsAndCredentials(t *testing.T) {
	t.Parallel()
	s := newHome(t).open(manifest.UserCredentials{}, nil)
	add(t, s, "u", "git-hub", "", `{"token":"${{ secrets.A }}"}`)
	expand := s.Expander(func(kind, name string) (string, bool) {
		return "<" + name + ">", kind == manifest.KindSecret && name == "A"
	})
	got, err := expand(t.Context(), "a ${{ secrets.A }} b ${{ user.credentials.Git-Hub }}", "u")
	if got != "a <A> b ${{ secrets.A }}" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := expand(t.Context(), "${{ user.credentials.jira }}", "u"); got != "" || fault.NameOf(err) != "CREDENTIAL_REQUIRED" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := expand(t.Context(), "${{ user.credentials.git-hub }}", ""); got != "" || err == nil || fault.NameOf(err) != "" {
		t.Errorf("without a user: %q, %v", got, err)
	}
	if got, err := expand(t.Context(), "${{ secrets.B }}", "u"); got != "" || err == nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSeal_TwoProcessesAgreeOnTheGeneratedKey(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	one, two := h.open(manifest.UserCredentials{}, nil), h.open(manifest.UserCredentials{}, nil)
	done := make(chan error, 2)
	for i, s := range []*credentials.Store{one, two} {
		go func() {
			_, err := s.Create(t.Context(), credentials.New{User: "u", Service: fmt.Sprint("s", i), Object: []byte(`{"token":"` + token + `"}`)})
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*credentials.Store{one, two} {
		for _, service := range []string{"s0", "s1"} {
			if value, err := s.Resolve(t.Context(), "u", service); value != token || err != nil {
				t.Errorf("%s: %q, %v", service, value, err)
			}
		}
	}
}
