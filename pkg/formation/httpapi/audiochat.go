package httpapi

import (
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/manifest"
)

// audioChatRoute is the scope of the idempotency keys of spoken messages.
const audioChatRoute = "POST /v1/audiochat"

// wrongContentType is the word for a file that is no recording.
const wrongContentType = "invalid_content_type"

// audioBody is the body of a spoken message (reference runtime.md 2.3).
type audioBody struct {
	Files     []fileBody `json:"files" required:"true"`
	AgentID   string     `json:"agent_id" about:"the agent that is to answer; left out, the best one is found"`
	AgentName string     `json:"agent_name" about:"the same as agent_id"`
	SessionID string     `json:"session_id" about:"the conversation to go on with; left out, a new one begins"`
	RequestID string     `json:"request_id" about:"chosen by the caller, to ask for the request or to cancel it"`
	Stream    *bool      `json:"stream" about:"answer with events"`
	UserID    string     `json:"user_id" about:"deprecated: the header wins"`
}

// chat is the body as one of chat, whose message is what the files say.
func (in *audioBody) chat() *chatBody {
	agent, message := in.AgentID, ""
	if agent == "" {
		agent = in.AgentName
	}
	return &chatBody{
		spoken: true, Message: &message, Files: in.Files, UserID: in.UserID, AgentID: agent, SessionID: in.SessionID,
		RequestID: in.RequestID, Stream: in.Stream,
	}
}

// audioChat answers POST /v1/audiochat: what is said in the files is the
// message, and the rest is as in chat. The words are found within the turn, so
// that it is accepted, streamed, cancelled and resumed like any other.
func (a *api) audioChat(c echo.Context, who caller) error {
	asked, err := a.readAudioChat(c, &who)
	if err != nil {
		return err
	}
	return a.begin(c, who, asked)
}

func (a *api) readAudioChat(c echo.Context, who *caller) (*asked, error) {
	body, err := httpx.ReadBody(c, httpx.MaxFormationBody)
	if err != nil {
		return nil, err
	}
	defer body.Release()
	var in audioBody
	if err := body.Decode(&in); err != nil {
		return nil, err
	}
	return a.ask(c, body, who, in.chat(), audioChatRoute)
}

// checkSpoken finds what only a spoken message needs.
func (a *api) checkSpoken(in *chatBody) error {
	if len(in.Files) == 0 {
		return spokenFault("missing", "Field 'files' must hold at least one recording")
	}
	for i := range in.Files {
		if t := in.Files[i].mediaType(); t != "" && !strings.HasPrefix(strings.ToLower(t), "audio/") {
			return invalidContentType(i, t)
		}
	}
	if !a.hears(in.AgentID) {
		return fault.New(fault.Unavailable, "SERVICE_UNAVAILABLE", "this formation has no audio model: add one to llm.models")
	}
	return nil
}

// hears tells whether there is a model for what is said to an agent.
func (a *api) hears(agentID string) bool {
	var own []manifest.Model
	if agent := a.cfg.Formation.Agent(agentID); agent != nil {
		own = agent.LLM.Models
	}
	_, _, ok := a.cfg.Formation.LLM.For(manifest.CapabilityAudio, own)
	return ok
}

// asSpoken marks the files as the message, and refuses what is no recording.
func asSpoken(files []chat.File) error {
	for i := range files {
		if files[i].Kind != chat.Audio {
			return invalidContentType(i, files[i].MediaType)
		}
		files[i].Spoken = true
	}
	return nil
}

func invalidContentType(i int, mediaType string) error {
	return spokenFault(wrongContentType, "%s: files[%d] is %q, want audio/*", wrongContentType, i, clip(mediaType))
}

// spokenFault is the fault of a spoken message whose files are wrong.
func spokenFault(word, format string, args ...any) error {
	return fault.Errorf(fault.Invalid, "VALIDATION_ERROR", format, args...).With("field", "files").With("error", word)
}
