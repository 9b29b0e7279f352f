package formation

// sleepBeats is how many beats of the heart in a row see no turn before the
// formation falls asleep: few enough that a host of many formations which nobody
// asks has its memory back, many enough that one which is asked now and then
// keeps what it will need again.
const sleepBeats = 3

// sleep tells when a formation that has worked, be it only to start, has nothing
// to do any more. What the work took from the system is given back then. The
// collector by itself begins when the heap has grown to several times what is in
// use, and keeps as much for the next time, which for most formations is late.
type sleep struct {
	total int64 // turns that had begun at the last beat
	calm  int   // beats since then that saw none
}

func newSleep() *sleep { return &sleep{total: -1} }

// falls tells that the formation falls asleep with this beat, given how many
// turns have begun and how many are open.
func (s *sleep) falls(total, active int64) bool {
	if active > 0 || total != s.total {
		s.total, s.calm = total, 0
		return false
	}
	s.calm++
	return s.calm == sleepBeats
}
