package gateway

import (
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
)

// state is where a session stands.
type state uint8

const (
	// upgrading: the WebSocket request is not complete yet.
	upgrading state = iota
	// awaitingLogin: framed, but nobody has said who this is.
	awaitingLogin
	// loggingIn: token and route are being checked elsewhere.
	loggingIn
	// live: logged in.
	live
	// refreshing: live, and a new token is being checked elsewhere.
	refreshing
	// leaving: nothing more is read; the connection is closed once what is in flight is answered.
	leaving
	// closing: the last bytes are queued.
	closing

	states
)

var stateNames = [states]string{"upgrading", "awaiting_login", "logging_in", "live", "refreshing", "leaving", "closing"}

// hold is a set of reasons not to take the next frame.
type hold uint8

const (
	holdLogin  hold = 1 << iota // token or route is being checked
	holdWindow                  // as much in flight as is allowed
	holdQueue                   // the queue to the logic tier is full
	holdRate                    // no tokens (mode pause)
	holdReply                   // a RETRY of the gateway's own waits for its time
	holdOutbox                  // the client does not read
	holdLeave                   // the connection is about to be closed

	holds = 7
)

var holdNames = [holds]string{"login", "window", "queue", "rate", "reply", "outbox", "leave"}

// verb is what the shell is to do.
type verb uint8

const (
	doNothing    verb = iota
	doRelay           // send the frame to the logic tier
	doPong            // answer a ping
	doHeartbeat       // answer a heartbeat
	doLogin           // check the token, then the route
	doLoginReply      // say again who this is
	doRefresh         // check the new token
	doLogout          // relay it, then leave
	doWrite           // pass the logic tier's answer on
	doFail            // ACK_FAIL with the reason
	doError           // ERROR with the reason; the connection stays
	doRetry           // RETRY after a while, parked meanwhile; the shape depends on the command
	doDrop            // say nothing, count it
	doClose           // close with the reason
)

// step is what a session decided about one event.
type step struct {
	verb   verb
	reason reason.Reason
	// after is how long a doRetry waits, at most retryMax.
	after time.Duration
	// limited names the limit when one was exceeded (also in dry run).
	limited limitKind
}

// limitKind is the label "limit" of sluice_limited_total.
type limitKind uint8

const (
	limitNone limitKind = iota
	limitMessages
	limitBytes
	limitKinds
)

var limitNames = [limitKinds]string{"none", "messages", "bytes"}

const (
	// retryPace is how long a RETRY of the gateway's own is held back when nothing better is known. It keeps a client that
	// resends at once to four attempts a second, and is well below the 5 s after which a client resends by itself.
	retryPace = 250 * time.Millisecond
	// retryMax bounds every such wait (guarantees, "What the gateway answers").
	retryMax = time.Second
	// unknownMax is how often one uuid may be answered Unknown on one connection before it is rejected: the third time is
	// no accident of a single backend.
	unknownMax = 3
	// unknownKept bounds how many uuids a session remembers for that: all that can be in flight by default, once.
	unknownKept = 32
	// leaveMax is how long a leaving connection waits for its answers. An answer takes at most relay.timeout, its RETRY
	// at most retryMax.
	leaveMax = time.Second
)

// session decides. It does no I/O and knows neither a clock nor a socket; what it is told is the engine's time. All of it
// is guarded by the mutex of its peer.
type session struct {
	// active is when bytes last came, or reading went on after a park.
	active time.Duration
	// frameAt is when the first byte of an unfinished frame came; 0 = none is unfinished.
	frameAt time.Duration
	// until ends the handshake before login, and the token after it; 0 = never.
	until    time.Duration
	messages bucket
	bytes    bucket

	// seq numbers the uplinks.
	seq           uint64
	inflightBytes uint32
	// inflight counts frames that the logic tier has or that wait for it, pending those whose RETRY waits for its time.
	inflight uint16
	pending  uint16

	state state
	// held is what the last gate found; 0 = the session is being read.
	held hold
	// blocked: the queue has refused an uplink and has not said yet that there is room.
	blocked bool
	// refusing: blocked for longer than park_max.
	refusing bool
	// ending is why the connection is closed; the first reason wins.
	ending reason.Reason
	// trouble is nil for a session that never had any.
	trouble *trouble
}

// trouble is what only a session with a misbehaving client, or behind a misbehaving logic tier, has to remember.
type trouble struct {
	errors   int
	errorsAt time.Duration
	// unknown counts answers "Unknown" by hash of uuid, the oldest first, at most unknownKept.
	unknown []unknownCount
}

type unknownCount struct {
	hash  uint64
	count uint8
}

func (s *session) troubled() *trouble {
	if s.trouble == nil {
		s.trouble = &trouble{}
	}
	return s.trouble
}

// opened starts the session. The handshake clock runs since the connection was accepted: one limit for the PROXY header,
// TLS, the upgrade and the login together.
func (s *session) opened(now, accepted time.Duration, r *rules, first state) {
	s.state, s.active, s.until = first, now, accepted+r.handshake
}

// loggedIn opens the session. until is when its token ends, in the engine's time; 0 = never.
func (s *session) loggedIn(now, until time.Duration) {
	s.state, s.until, s.active = live, until, now
}

// gate says whether the next frame may be taken, looking at every reason at once: a wake for one of them is no promise
// about the others.
func (s *session) gate(now time.Duration, r *rules, outboxBytes int) hold {
	var h hold
	switch s.state {
	case loggingIn, refreshing:
		h |= holdLogin
	case leaving, closing:
		h |= holdLeave
	}
	if s.windowFull(r) {
		h |= holdWindow
	}
	if s.blocked && !s.refusing {
		h |= holdQueue
	}
	// While the queue is full, frames are answered RETRY as they come, a window of them at a time: who has sent many
	// must not wait for one after the other.
	if s.pending > 0 && !s.refusing {
		h |= holdReply
	}
	if outboxBytes > r.outboxHigh {
		h |= holdOutbox
	}
	if !r.reject && !r.dryRun {
		if wait, _ := s.overLimit(now, r); wait > 0 {
			h |= holdRate
		}
	}
	if h == 0 && s.held != 0 {
		s.resume(now)
	}
	s.held = h
	return h
}

// windowFull reports whether enough is in flight. A frame is always admitted when nothing is: a maximal frame must fit.
func (s *session) windowFull(r *rules) bool {
	return s.inflight > 0 && (int(s.inflight) >= r.windowFrames || int(s.inflightBytes) >= r.windowBytes)
}

func (s *session) overLimit(now time.Duration, r *rules) (time.Duration, limitKind) {
	messages, bytes := s.messages.wait(now, r.messages), s.bytes.wait(now, r.bytes)
	if messages == 0 && bytes == 0 {
		return 0, limitNone
	}
	if bytes > messages {
		return bytes, limitBytes
	}
	return messages, limitMessages
}

// admit charges one frame of size bytes. In mode reject, and in a dry run, a frame that finds no tokens is not charged:
// its own rejection must not push the next one further away.
func (s *session) admit(now time.Duration, r *rules, size int) (time.Duration, limitKind) {
	if r.reject || r.dryRun {
		if wait, kind := s.overLimit(now, r); wait > 0 {
			return wait, kind
		}
	}
	s.messages.charge(now, r.messages, 1)
	s.bytes.charge(now, r.bytes, size)
	return 0, limitNone
}

// control decides about a ping or a pong. Control frames are charged like any other, so that a flood of them is paused or
// spends the error budget.
func (s *session) control(now time.Duration, r *rules, kind codec.Kind, size int) step {
	wait, limited := s.admit(now, r, size)
	if wait > 0 && !r.dryRun {
		return s.misbehaved(now, r, step{verb: doDrop, reason: reason.RateLimited, limited: limited})
	}
	if kind == codec.KindPing {
		return step{verb: doPong, limited: limited}
	}
	return step{limited: limited}
}

// command decides about one Command of size bytes on the wire. scanned is what the scan of it said.
func (s *session) command(now time.Duration, r *rules, h *codec.Header, scanned reason.Reason, size int) step {
	if s.state == awaitingLogin {
		return s.beforeLogin(h, scanned)
	}
	wait, limited := s.admit(now, r, size)
	if wait > 0 && !r.dryRun {
		st := step{verb: doRetry, reason: reason.RateLimited, after: min(wait, retryMax), limited: limited}
		return s.misbehaved(now, r, st)
	}
	st := s.liveCommand(now, r, h, scanned)
	st.limited = limited
	return st
}

func (s *session) beforeLogin(h *codec.Header, scanned reason.Reason) step {
	if scanned == reason.None && h.Type == clientv1.CommandType_LOGIN {
		s.state = loggingIn
		return step{verb: doLogin}
	}
	return step{verb: doClose, reason: reason.NotLoggedIn}
}

func (s *session) liveCommand(now time.Duration, r *rules, h *codec.Header, scanned reason.Reason) step {
	switch {
	case scanned == reason.BadCommand:
		return s.misbehaved(now, r, step{verb: doError, reason: scanned})
	case scanned != reason.None: // a MESSAGEUP that is not as it should be
		if len(h.UUID) > 0 && scanned != reason.BadUUID {
			return s.misbehaved(now, r, step{verb: doFail, reason: scanned})
		}
		return s.misbehaved(now, r, step{verb: doError, reason: scanned})
	}
	switch h.Type {
	case clientv1.CommandType_HEARTBEAT:
		return step{verb: doHeartbeat}
	case clientv1.CommandType_LOGIN:
		if len(h.Data) == 0 {
			return step{verb: doLoginReply}
		}
		s.state = refreshing
		return step{verb: doRefresh}
	case clientv1.CommandType_TOKEN_REFRESH:
		s.state = refreshing
		return step{verb: doRefresh}
	case clientv1.CommandType_LOGOUT:
		return step{verb: doLogout, reason: reason.LoggedOut}
	}
	if !relayed(h.Type) {
		return s.misbehaved(now, r, step{verb: doError, reason: reason.UnknownCommand})
	}
	if s.refusing {
		return step{verb: doRetry, reason: reason.QueueFull, after: retryPace}
	}
	return step{verb: doRelay}
}

// misbehaved spends one of the error budget; the one too many closes instead.
func (s *session) misbehaved(now time.Duration, r *rules, st step) step {
	t := s.troubled()
	if t.errors == 0 || now-t.errorsAt >= r.errorsWindow {
		t.errors, t.errorsAt = 0, now
	}
	t.errors++
	if t.errors > r.errorsMax {
		return step{verb: doClose, reason: reason.ErrorBudget, limited: st.limited}
	}
	return st
}

// number is the next number of an uplink.
func (s *session) number() uint64 {
	s.seq++
	return s.seq
}

// took accounts for a frame that is owed an answer.
func (s *session) took(size int) {
	s.inflight++
	s.inflightBytes += uint32(size)
}

// answered accounts for a frame that has its answer.
func (s *session) answered(size int) {
	s.inflight--
	s.inflightBytes -= uint32(size)
}

// opens says whether a parked session might go on now: the shell wakes it then, and gate decides.
func (s *session) opens(r *rules) bool {
	return s.held&holdWindow != 0 && !s.windowFull(r)
}
