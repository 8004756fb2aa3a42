package poller

// Resolved is what an engine works with: c with its defaults filled in and Connections clamped to the descriptor limit
// less Reserve. It fails when a field is negative, or when the limit leaves nothing after Reserve. For those who
// implement Engine elsewhere.
func (c Config) Resolved() (Config, error) {
	if err := c.check(); err != nil {
		return c, err
	}
	return c.withDefaults().clamp()
}
