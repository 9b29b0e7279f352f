package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/secrets/credentials"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// Credentials are what users gave for services (reference runtime.md 12).
type Credentials interface {
	Create(ctx context.Context, in credentials.New) (credentials.Credential, error)
	List(ctx context.Context, user string) ([]credentials.Credential, error)
	// Get and Delete know no credential of another user: fault.NotFound.
	Get(ctx context.Context, user, id string) (credentials.Credential, error)
	Delete(ctx context.Context, user, id string) error
}

// The object and type values of the routes of credentials (reference runtime.md
// 1.4, 1.5).
const (
	objectCredential      = "credential"
	objectCredentialList  = "credential_list"
	typeListRetrieved     = "list.retrieved"
	typeCredentialList    = "credentials.listed"
	typeCredentialCreated = "credentials.created"
	typeCredential        = "credentials.retrieved"
	typeCredentialDeleted = "credentials.deleted"
)

type credentialDocument struct {
	ID      string    `json:"credential_id"`
	Service string    `json:"service"`
	Name    string    `json:"name"`
	Preview string    `json:"credential_preview"`
	Created jsonTime  `json:"created_at"`
	Updated *jsonTime `json:"updated_at,omitempty"` // left out by the reply to POST
}

type credentialListDocument struct {
	Credentials []credentialDocument `json:"credentials"`
	Count       int                  `json:"count"`
}

type credentialDeleted struct {
	ID      string `json:"credential_id"`
	Deleted bool   `json:"deleted"`
}

type serviceDocument struct {
	Service     string `json:"service"`
	ServerID    string `json:"server_id"`
	Description string `json:"description"`
}

type serviceListDocument struct {
	Services []serviceDocument `json:"services"`
	Count    int               `json:"count"`
}

// listServices tells which tool servers want credentials of users.
func (a *api) listServices(c echo.Context, _ caller) error {
	list := serviceListDocument{Services: []serviceDocument{}}
	for _, s := range toolServers(a.cfg.Formation) {
		for _, service := range s.UserServices() {
			list.Services = append(list.Services, serviceDocument{service, s.ID, s.Description})
		}
	}
	list.Count = len(list.Services)
	return a.reply(c, objectList, typeListRetrieved, &list)
}

// toolServers returns the formation's tool servers, then those of its agents.
func toolServers(f *manifest.Formation) []*manifest.MCPServer {
	var list []*manifest.MCPServer
	for i := range f.MCPServers {
		list = append(list, &f.MCPServers[i])
	}
	for i := range f.Agents {
		for _, use := range f.Agents[i].MCPServers {
			if use.Own != nil {
				list = append(list, use.Own)
			}
		}
	}
	return list
}

func (a *api) listCredentials(c echo.Context, who caller) error {
	list := credentialListDocument{Credentials: []credentialDocument{}}
	if a.cfg.Credentials != nil {
		stored, err := a.cfg.Credentials.List(c.Request().Context(), who.user)
		if err != nil {
			return err
		}
		for _, one := range stored {
			list.Credentials = append(list.Credentials, shownCredential(one))
		}
	}
	list.Count = len(list.Credentials)
	return a.reply(c, objectCredentialList, typeCredentialList, &list)
}

func shownCredential(c credentials.Credential) credentialDocument {
	return credentialDocument{c.ID, c.Service, c.Name, c.Preview, jsonTime(c.Created), timeOrNil(&c.Updated)}
}

// credentialBody is the body of POST.
type credentialBody struct {
	Service    string          `json:"service" bind:"required"`
	Name       string          `json:"name"`
	Credential json.RawMessage `json:"credential" bind:"required"`
}

func (a *api) createCredential(c echo.Context, who caller) error {
	if a.cfg.Credentials == nil {
		return fault.New(fault.Unavailable, "SERVICE_UNAVAILABLE", "This formation keeps no credentials")
	}
	var in credentialBody
	if err := httpx.Bind(c, httpx.MaxManagementBody, &in); err != nil {
		return err
	}
	if in.Credential[0] != '{' {
		return &httpx.BodyError{Fields: []httpx.FieldError{{
			Field: "credential", Msg: "Input should be an object", Type: "object", Error: httpx.WrongType,
		}}}
	}
	made, err := a.cfg.Credentials.Create(c.Request().Context(), credentials.New{
		User: who.user, Service: in.Service, Name: in.Name, Object: in.Credential,
	})
	a.audit(c, who, Change{Action: "credential.create", Subject: made.ID, Message: "a user's credential was stored"}, err)
	if err != nil {
		return err
	}
	doc := shownCredential(made)
	doc.Updated = nil
	return a.replyStatus(c, http.StatusCreated, objectCredential, typeCredentialCreated, &doc)
}

func (a *api) getCredential(c echo.Context, who caller) error {
	if a.cfg.Credentials == nil {
		return credentialNotFound()
	}
	found, err := a.cfg.Credentials.Get(c.Request().Context(), who.user, httpx.Param(c, "id"))
	if err != nil {
		return err
	}
	doc := shownCredential(found)
	return a.reply(c, objectCredential, typeCredential, &doc)
}

func (a *api) deleteCredential(c echo.Context, who caller) error {
	if a.cfg.Credentials == nil {
		return credentialNotFound()
	}
	id := httpx.Param(c, "id")
	err := a.cfg.Credentials.Delete(c.Request().Context(), who.user, id)
	a.audit(c, who, Change{Action: "credential.delete", Subject: id[:min(len(id), 64)], Message: "a user's credential was deleted"}, err)
	if err != nil {
		return err
	}
	return a.reply(c, objectCredential, typeCredentialDeleted, &credentialDeleted{ID: id, Deleted: true})
}

func credentialNotFound() error {
	return fault.New(fault.NotFound, "", "This formation keeps no credentials")
}
