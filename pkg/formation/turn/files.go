package turn

import (
	"slices"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
)

// readFiles reads the files of a turn that is about to run. Who waits holds
// none in memory.
func (s *Service) readFiles(t *live) (err error) {
	if !t.filed && !t.resumed {
		return nil
	}
	t.files, err = request.Files(t.ctx, s.cfg.DB, t.rec.ID)
	t.filed = len(t.files) > 0
	return err
}

// remembered is the user's message as the session remembers it: with the words
// that were spoken, and with the names of the files in place of their content.
// It is never blank: a click that chose nothing comes without words, and what
// is remembered has to say something.
func (t *live) remembered(answer chat.Answer) string {
	message := t.rec.Message
	if answer.Heard != "" {
		message = answer.Heard
	}
	shown := slices.DeleteFunc(slices.Clone(t.files), func(f chat.File) bool { return f.Spoken })
	if said := chat.WithNote(message, chat.NameFiles(shown)); said != "" {
		return said
	}
	if c := t.click(); c != nil && c.Value != "" {
		return "[choice: " + c.Value + "]"
	}
	return "[choice]"
}
