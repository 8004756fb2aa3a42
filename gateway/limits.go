package gateway

import "time"

// rate is a token bucket in the form of the generic cell rate algorithm: the state of one connection is one instant, and
// there is nothing to refill.
type rate struct {
	// unit is what one token costs in time.
	unit time.Duration
	// burst is how far a bucket's instant may run ahead of the clock.
	burst time.Duration
}

func newRate(perSecond, burst int) rate {
	unit := time.Second / time.Duration(perSecond)
	if unit == 0 {
		unit = 1
	}
	return rate{unit: unit, burst: unit * time.Duration(burst)}
}

// bucket is the instant at which all tokens would be back. The zero value is full.
type bucket time.Duration

// wait is how long it takes until one token is there; 0 = now. A charge is made after the fact and may be for more, so a
// bucket can be in debt by one frame.
func (b bucket) wait(now time.Duration, r rate) time.Duration {
	return max(max(time.Duration(b), now)+r.unit-now-r.burst, 0)
}

func (b *bucket) charge(now time.Duration, r rate, tokens int) {
	at := time.Duration(*b)
	if at < now {
		at = now
	}
	*b = bucket(at + r.unit*time.Duration(tokens))
}

// rules are the limits that all sessions share. Fixed after New.
type rules struct {
	handshake    time.Duration
	frameTimeout time.Duration
	idle         time.Duration

	messages rate
	bytes    rate
	reject   bool // limits.uplink.mode is reject
	dryRun   bool

	errorsMax    int
	errorsWindow time.Duration

	windowFrames int
	windowBytes  int
	// outboxHigh is a quarter of the outbox: who has more queued is not read (guarantees, "Backpressure, precisely").
	outboxHigh int
}

func newRules(c *Config) rules {
	u := c.Limits.Uplink
	return rules{
		handshake:    c.Limits.Handshake.Timeout,
		frameTimeout: c.Limits.Frame.Timeout,
		idle:         c.Heartbeat.IdleTimeout,
		messages:     newRate(u.MessagesPerSecond, u.MessagesBurst),
		bytes:        newRate(u.BytesPerSecond, u.BytesBurst),
		reject:       u.Mode == modeReject,
		dryRun:       u.DryRun,
		errorsMax:    c.Limits.Errors.Count,
		errorsWindow: c.Limits.Errors.Window,
		windowFrames: c.Backpressure.InflightFrames,
		windowBytes:  c.Backpressure.InflightBytes,
		outboxHigh:   c.Backpressure.OutboxBytes / 4,
	}
}
