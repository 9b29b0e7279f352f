package overlord

// What tests in the package overlord_test reach of the inside.

type Replied = replied

func (o *Overlord) Ask(kind string, a asker) { o.askers[kind] = a }

func Harmless(fragment string) string { return harmless(fragment) }
