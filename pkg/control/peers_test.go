package control

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/stats"
)

func TestPeers_TellsWhenNoneWasThereForTooLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		p := newPeers(10*time.Second, func() { begun++ })
		defer p.stop()
		come := func() { p.HandleConn(t.Context(), &stats.ConnBegin{}) }
		leave := func() { p.HandleConn(t.Context(), &stats.ConnEnd{}) }
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		pass(59 * time.Second)
		come()
		come()
		leave()
		pass(time.Hour) // one is still there
		leave()
		pass(9 * time.Second)
		come() // the clock starts anew
		leave()
		pass(9 * time.Second)
		p.mustBe(t, false)
		pass(time.Second)
		p.mustBe(t, true)
		come() // too late: it is closed once
		leave()
		pass(time.Hour)
		if begun != 1 {
			t.Errorf("begun %d times, want once", begun)
		}
	})
}

func TestPeers_TheFirstIsWaitedForEvenWhenLaterGapsAreNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		never := newPeers(0, nil)
		defer never.stop()
		once := newPeers(0, nil)
		defer once.stop()
		once.HandleConn(t.Context(), &stats.ConnBegin{})
		once.HandleConn(t.Context(), &stats.ConnEnd{})
		<-time.After(24 * time.Hour)
		synctest.Wait()
		never.mustBe(t, true)
		once.mustBe(t, false)
	})
}

func (p *peers) mustBe(t *testing.T, alone bool) {
	t.Helper()
	select {
	case <-p.alone:
		if !alone {
			t.Error("alone too early")
		}
	default:
		if alone {
			t.Error("not alone in time")
		}
	}
}
