package clarify_test

import (
	"testing"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/overlord/clarify"
)

func choice(i int) clarify.Reply {
	return clarify.Reply{Verdict: clarify.Choice, Option: i, Sure: true}
}

func guess(i int) clarify.Reply { return clarify.Reply{Verdict: clarify.Choice, Option: i} }

var (
	accounts = chat.Question{ID: "ui_abc", Options: []chat.Option{
		{Value: "acc-1", Label: "Work account"}, {Value: "acc-2", Label: "Home"}, {Value: "3", Label: "Other (42)"},
	}}
	yesNo   = chat.Question{ID: "ui_yn", Options: []chat.Option{{Value: "yes", Label: "Yes, hand over"}, {Value: "no", Label: "No"}}}
	open    = chat.Question{ID: "ui_open"}
	sure    = func(v clarify.Verdict) clarify.Reply { return clarify.Reply{Verdict: v, Sure: true} }
	perhaps = func(v clarify.Verdict) clarify.Reply { return clarify.Reply{Verdict: v} }
)

func TestRead_UnderstandsWordsAndClicks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		question chat.Question
		message  string
		click    *chat.UIReply
		want     clarify.Reply
	}{
		{accounts, "", &chat.UIReply{ID: "ui_abc", Value: "acc-2"}, choice(1)},
		{accounts, "something else", &chat.UIReply{ID: "ui_abc", Index: new(0)}, choice(0)},
		{accounts, "", &chat.UIReply{ID: "ui_abc", Value: "acc-9"}, sure(clarify.Blank)},
		{accounts, "", &chat.UIReply{ID: "ui_abc", Index: new(3)}, sure(clarify.Blank)},
		{accounts, "", &chat.UIReply{ID: "ui_abc", Index: new(-1)}, sure(clarify.Blank)},
		{accounts, "", &chat.UIReply{ID: "ui_xyz", Value: "acc-2"}, sure(clarify.Blank)},
		{chat.Question{Options: accounts.Options}, "", &chat.UIReply{Value: "acc-2"}, sure(clarify.Blank)},
		{accounts, "ui_abc#1", nil, choice(1)},
		{accounts, "ui_abc#9", nil, perhaps(clarify.New)},
		{accounts, "ui_xyz#1", nil, perhaps(clarify.New)},
		{accounts, "ACC-1", nil, choice(0)},
		{accounts, " work   Account. ", nil, choice(0)},
		{accounts, "2", nil, choice(1)},
		{accounts, "3", nil, choice(2)},
		{accounts, "4", nil, perhaps(clarify.New)},
		{accounts, "0", nil, perhaps(clarify.New)},
		{accounts, "option 1", nil, choice(0)},
		{accounts, "the second one", nil, choice(1)},
		{accounts, "the last one", nil, choice(2)},
		{accounts, "use my home please", nil, guess(1)},
		{accounts, "home or work account", nil, perhaps(clarify.New)},
		{accounts, "What is the capital of France?", nil, perhaps(clarify.New)},
		{accounts, "yes", nil, perhaps(clarify.New)},
		{accounts, "Never mind!", nil, sure(clarify.Cancel)},
		{accounts, "  ", nil, sure(clarify.Blank)},
		{yesNo, "Sure!", nil, choice(0)},
		{yesNo, "no thanks", nil, choice(1)},
		{yesNo, "don’t", nil, choice(1)},
		{yesNo, "1", nil, choice(0)},
		{yesNo, "no, ask the cook instead", nil, guess(1)},
		{yesNo, "yes but only for today", nil, guess(0)},
		{yesNo, "cancel", nil, sure(clarify.Cancel)},
		{yesNo, "nobody knows", nil, perhaps(clarify.New)},
		{open, "Paris", nil, sure(clarify.Text)},
		{open, "In Paris?", nil, sure(clarify.Text)},
		{open, "what is on television tonight?", nil, perhaps(clarify.New)},
		{open, "forget it", nil, sure(clarify.Cancel)},
		{open, "", &chat.UIReply{ID: "ui_open", Index: new(0)}, sure(clarify.Blank)},
		{chat.Question{Options: []chat.Option{{Value: "cancel", Label: "Cancel the order"}}}, "cancel", nil, choice(0)},
	} {
		if got := clarify.Read(c.question, c.message, c.click); got != c.want {
			t.Errorf("%q, click %+v: %+v, want %+v", c.message, c.click, got, c.want)
		}
	}
}

func FuzzRead_ChoosesOnlyWhatIsOffered(f *testing.F) {
	f.Add("the 2nd one", "ui_abc", "acc-1", 1)
	f.Add("ui_abc#1", "", "", -1)
	f.Fuzz(func(t *testing.T, message, id, value string, index int) {
		for _, q := range []chat.Question{accounts, yesNo, open} {
			for _, click := range []*chat.UIReply{nil, {ID: id, Value: value}, {ID: id, Index: &index}} {
				r := clarify.Read(q, message, click)
				if r.Verdict == clarify.Choice && (r.Option < 0 || r.Option >= len(q.Options)) {
					t.Fatalf("%q chose option %d of %d", message, r.Option, len(q.Options))
				}
			}
		}
	})
}
