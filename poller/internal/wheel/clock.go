package wheel

import "time"

// Clock is the monotonic time of one engine and its wheels. It begins one tick after 0, which may stand for "no timer".
type Clock struct {
	start time.Time
	tick  time.Duration
}

// NewClock is a clock that begins now, for wheels of the given grain.
func NewClock(tick time.Duration) Clock { return Clock{start: time.Now(), tick: tick} }

// Now is the engine's time.
func (c Clock) Now() time.Duration { return c.At(time.Now()) }

// At is the engine's time at t.
func (c Clock) At(t time.Time) time.Duration { return t.Sub(c.start) + c.tick }

// Wall is At backwards.
func (c Clock) Wall(d time.Duration) time.Time { return c.start.Add(d - c.tick) }

// After is the tick that begins d, which is not negative, from now or later; never 0.
func (c Clock) After(d time.Duration) uint32 {
	t := (c.Now() + d + c.tick - 1) / c.tick
	return max(uint32(t), 1)
}
