package mcpclient

// Admit counts a try of a call as a call does, without making it.
func (c *Client) Admit(server, tool string) error { return c.byKey[server].admit(tool) }
