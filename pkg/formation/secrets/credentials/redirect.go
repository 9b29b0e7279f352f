package credentials

import (
	"fmt"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
)

// PortalLink is the name of the link for services without one of their own
// (reference runtime.md 6.1).
const PortalLink = "credential_portal"

// required sends the user to where credentials are given.
func (s *Store) required(service string) error {
	answer := chat.Answer{Content: s.cfg.Settings.RedirectMessage}
	if answer.Content == "" {
		answer.Content = fmt.Sprintf("This needs your own access to %s, which you have not given yet. "+
			"Please add your %s credentials and ask again.", service, service)
	}
	link, ok := s.cfg.Links[service]
	if !ok {
		link, ok = s.cfg.Links[PortalLink]
	}
	if ok {
		label := link.Label
		if label == "" {
			label = "Connect " + service
		}
		answer.Widgets = []chat.Widget{{
			Type: chat.WidgetActionLink, Label: label, URL: link.URL, Hint: link.Hint,
		}}
	}
	return &NeedError{
		Service: service, answer: answer,
		fault: fault.Errorf(fault.Conflict, codeRequired, "The user has no credential of %s", service),
	}
}
