package delivery

import "time"

// jitterPart is how far a delay is moved at most, either way: 1/10 keeps receivers of one burst from coming due together.
const jitterPart = 10

// schedule says when the next attempt of a message comes. It is pure: r is a random number in [0,1).
type schedule struct {
	ackTimeout time.Duration
	backoff    []time.Duration
	max        int
}

func newSchedule(c Resend) schedule {
	return schedule{ackTimeout: c.AckTimeout, backoff: c.Backoff, max: c.Max}
}

// pushed is the delay from the first push to the first resend; without resends, to the end of the wait for the ack.
func (s schedule) pushed(r float64) time.Duration {
	if s.max == 0 {
		return jitter(s.ackTimeout, r)
	}
	return jitter(s.ackTimeout+s.step(0), r)
}

// failed is the delay from a first push that did not arrive to the first resend.
func (s schedule) failed(r float64) time.Duration { return jitter(s.step(0), r) }

// resent is the delay from resend n (from 1) to the next one; after the last, to the end of the wait for the ack.
func (s schedule) resent(n int, r float64) time.Duration {
	if n >= s.max {
		return jitter(s.ackTimeout, r)
	}
	return jitter(s.step(n), r)
}

func (s schedule) step(n int) time.Duration { return s.backoff[min(n, len(s.backoff)-1)] }

// hold is how long a scanner keeps the messages it took to itself: long enough to load and look them up, short enough
// that the messages of a scanner that died soon come up again.
func (s schedule) hold() time.Duration { return max(s.ackTimeout/2, time.Millisecond) }

func jitter(d time.Duration, r float64) time.Duration {
	return d - d/jitterPart + time.Duration(r*float64(2*(d/jitterPart)))
}
