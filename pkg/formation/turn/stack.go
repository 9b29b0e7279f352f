package turn

// stackRoom is about how deep the stack of a turn becomes.
const stackRoom = 24 << 10

// roomy runs fn with that much room on its goroutine's stack. On the way down
// into a turn the stack would grow three times, and each time everything that
// stands on it is looked up and adjusted: a twelfth of a turn's processor time.
// Up here nothing stands on it yet.
func roomy(fn func()) {
	_ = occupied(0)
	fn()
}

// occupied has a frame of that size. It is never inlined, so that its frame is
// gone when it returns, and the room stays.
//
//go:noinline
func occupied(i int) byte {
	var room [stackRoom]byte
	return room[i]
}
