package stateclient

import "time"

// roomEvery is the shortest time between two Room calls of a lane. A connection that is told too early is refused and
// asks again; without a pause the two would chase each other.
const roomEvery = int64(5 * time.Millisecond)

// roomy says that a quarter of the lane is free: less is not worth waking anybody.
func (l *lane) roomy() bool {
	free := l.queueMax - l.held
	return free > 0 && free >= l.queueMax/4 && l.heldBytes <= l.bytesMax-l.bytesMax/4
}

// offerRoom tells as many of the refused connections as there are free places, the longest waiting first, and returns
// when it wants to be called again. A place that a connection does not use goes to the next one then. Only the minder
// calls it.
func (l *lane) offerRoom(now int64) (next int64) {
	l.mu.Lock()
	if len(l.waiting) == 0 || !l.roomy() && !l.closed {
		l.mu.Unlock()
		return never
	}
	if now < l.roomAt {
		l.mu.Unlock()
		return l.roomAt
	}
	n := min(len(l.waiting), max(l.queueMax-l.held, 0))
	if l.closed {
		n = len(l.waiting)
	}
	l.roomConns = l.roomConns[:0]
	for _, p := range l.waiting[:n] {
		if p.flight.lane.Load() == l {
			p.flight.waiting = false
		}
		l.roomConns = append(l.roomConns, p.ConnID)
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	l.mu.Unlock()

	l.roomAt = now + roomEvery
	if room := l.relay.cfg.Room; room != nil {
		room(l.roomConns)
	}
	if rest > 0 {
		return l.roomAt
	}
	return never
}

// timer is one timer that is used again and again by the goroutine that owns it.
type timer struct{ t *time.Timer }

func newTimer() *timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &timer{t: t}
}

// wait returns after ns nanoseconds, or as soon as early has something.
func (t *timer) wait(ns int64, early <-chan struct{}) {
	t.t.Reset(time.Duration(max(ns, 0)))
	select {
	case <-t.t.C:
	case <-early:
		t.t.Stop()
	}
}
