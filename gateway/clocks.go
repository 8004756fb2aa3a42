package gateway

import (
	"time"

	"github.com/sluice-im/sluice/api/reason"
)

// The clocks of a session: handshake, token, unfinished frame and silence share the connection's one timer. Those of
// the client stand still while the gateway itself does not read.

// resume starts the clocks again that stood still while the gateway did not read.
func (s *session) resume(now time.Duration) {
	s.active = now
	if s.frameAt != 0 {
		s.frameAt = now
	}
}

// partial notes whether an unfinished frame is there; finished frames end its clock.
func (s *session) partial(now time.Duration, unfinished bool) {
	switch {
	case !unfinished:
		s.frameAt = 0
	case s.frameAt == 0:
		s.frameAt = max(now, 1)
	}
}

// expired says why a session's time is over; None = it is not.
func (s *session) expired(now time.Duration, r *rules) reason.Reason {
	switch {
	case s.state >= leaving:
		return reason.None
	case s.until != 0 && now >= s.until:
		switch s.state {
		case upgrading:
			return reason.HandshakeTimeout
		case live, refreshing:
			return reason.TokenExpired
		}
		return reason.LoginTimeout
	case s.held != 0:
		return reason.None
	case s.frameAt != 0 && now >= s.frameAt+r.frameTimeout:
		return reason.FrameTimeout
	case now >= s.active+r.idle:
		return reason.IdleTimeout
	}
	return reason.None
}

// next is when the session has to be looked at again, in the engine's time; 0 = never.
func (s *session) next(now time.Duration, r *rules) time.Duration {
	at := time.Duration(0)
	sooner := func(t time.Duration) {
		if at == 0 || t < at {
			at = t
		}
	}
	if s.state >= leaving {
		return 0
	}
	if s.until != 0 {
		sooner(s.until)
	}
	if s.held == 0 {
		sooner(s.active + r.idle)
		if s.frameAt != 0 {
			sooner(s.frameAt + r.frameTimeout)
		}
	}
	if s.held&holdRate != 0 {
		wait, _ := s.overLimit(now, r)
		sooner(now + wait)
	}
	return at
}
