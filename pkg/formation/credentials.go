package formation

import (
	"strings"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/secrets/credentials"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// openCredentials prepares the store of what users give. The key and the salt
// may be placeholders, and so may the texts of links.
func openCredentials(p *parts, req control.LoadRequest) (*credentials.Store, error) {
	x := expander{resolve: p.secrets.Resolve}
	settings := p.manifest.UserCredentials
	written := settings.EncryptionKey != ""
	settings.EncryptionKey = x.text("user_credentials.encryption.key", settings.EncryptionKey)
	settings.EncryptionSalt = x.text("user_credentials.encryption.salt", settings.EncryptionSalt)
	settings.RedirectMessage = x.text("user_credentials.redirect_message", settings.RedirectMessage)
	links := make(map[string]manifest.Link, len(p.manifest.Links))
	for name, link := range p.manifest.Links {
		where := "links." + name
		links[strings.ToLower(name)] = manifest.Link{Label: x.text(where, link.Label), URL: x.text(where, link.URL), Hint: x.text(where, link.Hint)}
	}
	if x.err == nil && written && settings.EncryptionKey == "" {
		x.err = fault.New(fault.Invalid, "SecretsError",
			"user_credentials.encryption.key is empty after its placeholder was resolved; give it a value or leave the key out to have one generated")
	}
	if x.err != nil {
		return nil, x.err
	}
	p.redact.Add(settings.EncryptionKey)
	return credentials.Open(credentials.Config{
		DB: p.db, StateDir: req.StateDir, Settings: settings, Links: links, Known: p.redact.AddPassing, NewID: httpx.NewID,
	}), nil
}
