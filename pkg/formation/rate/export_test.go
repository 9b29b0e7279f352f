package rate

// Len is how many callers are remembered.
func (c *Callers) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all.byName)
}
