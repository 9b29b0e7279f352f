package mcpclient

import "encoding/json"

// The states of a server.
const (
	StatusConnected = "connected" // a session is open
	StatusIdle      = "idle"      // none is needed now
	StatusError     = "error"     // the last connection failed
)

// ServerStatus is how a server is, for people.
type ServerStatus struct {
	ID      string
	Agent   string // whose it is; "" for one of the formation
	Name    string // what it calls itself, or its id
	Type    string // command or http
	Status  string
	Enabled bool
	// Tools is how many it offers, after the filter of its file.
	Tools       int
	Description string
	// Capabilities are what the file says that it can do, nil when it says nothing.
	Capabilities any
	LastError    string // "" when the last connection went well
}

// ToolInfo is a tool as its server describes it.
type ToolInfo struct {
	Name        string // at its server
	ModelName   string // as models know it
	Title       string
	Description string
	Server      string
	Agent       string // whose server it is; "" for one of the formation
	InputSchema json.RawMessage
	ReadOnly    bool
	Idempotent  bool
}

// Servers returns how all servers are, in the order of the files. It asks none.
func (c *Client) Servers() []ServerStatus {
	out := make([]ServerStatus, 0, len(c.servers))
	for _, s := range c.servers {
		out = append(out, s.status())
	}
	return out
}

func (s *server) status() ServerStatus {
	st := ServerStatus{
		ID: s.file.ID, Agent: s.agent, Name: s.file.ID, Type: s.file.Type, Status: StatusIdle, Enabled: true, Description: s.file.Description,
		Capabilities: s.file.Capabilities,
	}
	if l := s.list.Load(); l != nil {
		for i := range l.Tools {
			if offers(s.file.Tools, l.Tools[i].Name) {
				st.Tools++
			}
		}
		if l.Name != "" {
			st.Name = l.Name
		}
	}
	s.mu.Lock()
	st.LastError = s.trouble
	s.mu.Unlock()
	if st.LastError != "" {
		st.Status = StatusError
	}
	for _, l := range s.places() {
		if l.live() != nil {
			st.Status = StatusConnected
		}
	}
	return st
}

// Catalog returns all tools that the files let through, by server.
func (c *Client) Catalog() []ToolInfo {
	var out []ToolInfo
	for _, s := range c.servers {
		l := s.list.Load()
		if l == nil {
			continue
		}
		for i := range l.Tools {
			t := &l.Tools[i]
			if offers(s.file.Tools, t.Name) {
				out = append(out, ToolInfo{
					Name: t.Name, ModelName: modelName(s.file.ID, t.Name, false), Title: t.Title, Description: t.Description,
					Server: s.file.ID, Agent: s.agent, InputSchema: t.Schema, ReadOnly: t.ReadOnly, Idempotent: t.Idempotent,
				})
			}
		}
	}
	return out
}
