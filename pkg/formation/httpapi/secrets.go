package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
)

// Secrets are the formation's secrets. Names come as a caller writes them and
// go back in their one form, UPPER_SNAKE; values only ever come. The errors have
// the codes of the reference, runtime.md 1.3 and 2.2.
type Secrets interface {
	// Masked returns the masks of all values by name, Mask that of one.
	Masked() (map[string]string, error)
	Mask(name string) (normal, masked string, err error)
	Create(name, value string) (normal string, err error)
	// Update tells whether something keeps the old value until the next start.
	Update(name, value string) (normal string, kept bool, err error)
	Delete(name string) (normal string, err error)
	// Reload reads the version's own secrets again.
	Reload() (added, overwritten, preserved []string, err error)
}

// The limits of a secret in bytes; its name has to be a part of a file, too.
const (
	maxSecretName  = 128
	maxSecretValue = 64 << 10
)

// The object and type values of the routes of secrets (reference runtime.md
// 1.4, 1.5).
const (
	objectSecret        = "secret"
	objectSecretList    = "secret_list"
	typeSecretCreated   = "secret.created"
	typeSecretRetrieved = "secret.retrieved"
	typeSecretUpdated   = "secret.updated"
	typeSecretDeleted   = "secret.deleted"
	typeSecretList      = "secret.list"
	typeSecretReloaded  = "secret.reloaded"
)

type secretListDocument struct {
	Secrets map[string]string `json:"secrets"`
	Count   int               `json:"count"`
}

type secretDocument struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type secretMessage struct {
	Message string `json:"message"`
}

type secretReload struct {
	Message     string   `json:"message"`
	Added       []string `json:"added"`
	Overwritten []string `json:"overwritten"`
	Preserved   []string `json:"preserved"`
	Count       int      `json:"count"`
}

func (a *api) listSecrets(c echo.Context, _ caller) error {
	masked, err := a.cfg.Secrets.Masked()
	if err != nil {
		return err
	}
	return a.reply(c, objectSecretList, typeSecretList, &secretListDocument{Secrets: masked, Count: len(masked)})
}

func (a *api) getSecret(c echo.Context, _ caller) error {
	name, masked, err := a.cfg.Secrets.Mask(secretParam(c))
	if err != nil {
		return err
	}
	return a.reply(c, objectSecret, typeSecretRetrieved, &secretDocument{Key: name, Value: masked})
}

// secretParam returns the name in the path. One that is too long names nothing.
func secretParam(c echo.Context) string {
	name := httpx.Param(c, "key")
	return name[:min(len(name), maxSecretName+1)]
}

// secretBody is the body of POST and PUT. The name of PUT is in its path.
type secretBody struct {
	Key   string `json:"key"`
	Value string `json:"value" bind:"required"`
}

// check returns what is wrong with the values of a body.
func (in *secretBody) check(named bool) error {
	var bad checker
	if named {
		switch {
		case in.Key == "":
			bad.add("key", "Field required", "string", httpx.Missing)
		case len(in.Key) > maxSecretName:
			bad.add("key", "Use at most 128 bytes", "string", httpx.TooLong)
		case !hasNameCharacter(in.Key):
			bad.add("key", "Use letters, digits and _", "string", httpx.InvalidFormat)
		}
	}
	switch {
	case in.Value == "":
		bad.add("value", "The value is empty", "string", httpx.TooShort)
	case len(in.Value) > maxSecretValue:
		bad.add("value", "Use at most 65536 bytes", "string", httpx.TooLong)
	}
	if bad == nil {
		return nil
	}
	return &httpx.BodyError{Fields: bad}
}

// hasNameCharacter tells whether a name is left when all else becomes _.
func hasNameCharacter(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
			return true
		}
	}
	return false
}

func (a *api) createSecret(c echo.Context, who caller) error {
	var in secretBody
	err := httpx.Bind(c, httpx.MaxManagementBody, &in)
	if err == nil {
		err = in.check(true)
	}
	if err != nil {
		return err
	}
	name, err := a.cfg.Secrets.Create(in.Key, in.Value)
	a.audit(c, who, Change{Action: "secret.create", Subject: name, Message: "a secret was created"}, err)
	if err != nil {
		return err
	}
	return a.replyStatus(c, http.StatusCreated, objectSecret, typeSecretCreated, &secretMessage{"Secret " + name + " created"})
}

func (a *api) updateSecret(c echo.Context, who caller) error {
	var in secretBody
	err := httpx.Bind(c, httpx.MaxManagementBody, &in)
	if err == nil {
		err = in.check(false)
	}
	if err != nil {
		return err
	}
	name, kept, err := a.cfg.Secrets.Update(secretParam(c), in.Value)
	a.audit(c, who, Change{Action: "secret.update", Subject: name, Message: "a secret was updated"}, err)
	if err != nil {
		return err
	}
	message := "Secret " + name + " updated"
	if kept {
		message += ". What the formation set up with it at its start keeps the old value until the next one"
	}
	return a.reply(c, objectSecret, typeSecretUpdated, &secretMessage{message})
}

func (a *api) deleteSecret(c echo.Context, who caller) error {
	name, err := a.cfg.Secrets.Delete(secretParam(c))
	a.audit(c, who, Change{Action: "secret.delete", Subject: name, Message: "a secret was deleted"}, err)
	if err != nil {
		return err
	}
	return a.reply(c, objectSecret, typeSecretDeleted, &secretMessage{"Secret " + name + " deleted"})
}

func (a *api) reloadSecrets(c echo.Context, who caller) error {
	added, overwritten, preserved, err := a.cfg.Secrets.Reload()
	a.audit(c, who, Change{Action: "secret.reload", Message: "the encrypted secrets were read again"}, err)
	if err != nil {
		return err
	}
	return a.reply(c, objectSecretList, typeSecretReloaded, &secretReload{
		Message: "Secrets reloaded", Added: added, Overwritten: overwritten, Preserved: preserved,
		Count: len(added) + len(overwritten) + len(preserved),
	})
}

// replyStatus is reply with another status than 200.
func (a *api) replyStatus(c echo.Context, status int, object, typ string, data any) error {
	return httpx.JSON(c, status, &envelope{
		Object: object, Timestamp: a.cfg.Now().UnixMilli(), Type: typ,
		Request: requestInfo{ID: httpx.RequestID(c)}, Success: true, Data: data,
	})
}
