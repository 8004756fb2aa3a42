// Package core is the client's protocol as a state machine: what is sent when, what the application sees, what is kept.
// It has no socket, no clock and no randomness of its own; every input carries its time, and every decision comes out as
// an Effect. Whole conversations, however unlucky, can therefore be written down as tests.
//
// The sender's half is sender.go (stop-and-wait, resends, drafts) and receipts.go (what becomes of stored messages); the
// receiver's half is receiver.go (order and duplicates), sync.go (catching up) and pull.go (closing gaps). They meet here
// because a conversation has one line of numbers for both.
package core

import (
	"fmt"
	"math/rand/v2"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

// Machine is one user's client on one device. It is not safe for concurrent use. Times passed to it must not go back.
type Machine struct {
	cfg Config
	rnd *rand.Rand
	out []Effect

	// The connection.
	connected bool
	uid       string
	frameMax  int

	// The sender.
	rto    RTO
	queue  []*item
	drafts []*item
	byUUID map[string]*item
	stored receipts

	// The receiver.
	convs      map[string]*conversation
	active     []*conversation
	undecided  []*conversation
	earlyBytes int
	sync       syncing
	pulls      pulls
}

// New makes a machine that continues from marks. rnd is used for jitter only.
func New(cfg Config, marks Marks, rnd *rand.Rand) *Machine {
	m := &Machine{
		cfg:      cfg,
		rnd:      rnd,
		uid:      marks.UID,
		frameMax: cfg.FrameBytes,
		rto:      RTO{Initial: cfg.Timeout, Min: min(cfg.TimeoutMin, cfg.Timeout), Max: max(cfg.TimeoutMax, cfg.Timeout)},
		byUUID:   make(map[string]*item),
		convs:    make(map[string]*conversation, len(marks.Conversations)),
	}
	m.stored.byUUID = make(map[string]*stored)
	m.sync.sinceMs, m.sync.heldMs = marks.SinceMs, marks.SinceMs
	for id, seq := range marks.Conversations {
		m.convs[id] = &conversation{id: id, decided: true, mark: seq, held: seq, top: seq}
	}
	return m
}

// UID is the user, as marks or the last login named him; empty before either.
func (m *Machine) UID() string { return m.uid }

// Connected says that a login succeeded as uid, on a connection that takes commands of at most frameBytes (0 = as
// configured). Whatever is unsettled is sent again, and the catching up begins.
func (m *Machine) Connected(now time.Time, uid string, frameBytes int) {
	m.connected, m.frameMax = true, m.cfg.FrameBytes
	if uid != "" {
		m.uid = uid
	}
	if frameBytes > 0 {
		m.frameMax = frameBytes
	}
	m.resumeCounting(now)
	m.startSync(now)
	m.advance(now)
}

// Disconnected says that the connection is gone, with everything that was under way on it.
func (m *Machine) Disconnected(now time.Time) {
	if !m.connected {
		return
	}
	m.connected = false
	m.loseInFlight(now)
	m.sync.stop()
	m.stopPulls(now)
	m.repeatRecent(now)
}

// Command takes one command of the server. An error means that its data could not be decoded; it was ignored.
func (m *Machine) Command(now time.Time, t clientv1.CommandType, data []byte) error {
	var err error
	switch t {
	case clientv1.CommandType_MESSAGEACK:
		err = decode(data, &clientv1.MessageAck{}, func(a *clientv1.MessageAck) { m.onAck(now, a) })
	case clientv1.CommandType_MESSAGEDOWN:
		err = decode(data, &clientv1.MessageDown{}, func(d *clientv1.MessageDown) { m.onDown(now, d) })
	case clientv1.CommandType_DELIVERED_NOTICE:
		err = decode(data, &clientv1.DeliveredNotice{}, func(n *clientv1.DeliveredNotice) {
			m.onNotice(Delivered, n.ConvId, n.Uid, n.Seq)
		})
	case clientv1.CommandType_READ_NOTICE:
		err = decode(data, &clientv1.ReadNotice{}, func(n *clientv1.ReadNotice) { m.onNotice(Read, n.ConvId, n.Uid, n.Seq) })
	case clientv1.CommandType_SYNC_REPLY:
		err = decode(data, &clientv1.SyncReply{}, func(r *clientv1.SyncReply) { m.onSyncReply(now, r) })
	case clientv1.CommandType_PULL_REPLY:
		err = decode(data, &clientv1.PullReply{}, func(r *clientv1.PullReply) { m.onPullReply(now, r) })
	case clientv1.CommandType_RESYNC:
		m.startSync(now)
	case clientv1.CommandType_ERROR:
		err = decode(data, &clientv1.Error{}, func(e *clientv1.Error) { m.onError(now, e) })
	}
	if err != nil {
		return fmt.Errorf("decode %v: %w", t, err)
	}
	m.advance(now)
	return nil
}

// decode unmarshals data into msg and hands it on.
func decode[M interface{ UnmarshalVT([]byte) error }](data []byte, msg M, use func(M)) error {
	if err := msg.UnmarshalVT(data); err != nil {
		return err
	}
	use(msg)
	return nil
}

// onError is a command of ours that the server could not carry out. What ends the connection is not decided here.
func (m *Machine) onError(now time.Time, e *clientv1.Error) {
	after := time.Duration(e.RetryAfterMs) * time.Millisecond
	switch e.Command {
	case clientv1.CommandType_MESSAGEUP:
		m.failRefused(e.Uuid, e.Reason)
	case clientv1.CommandType_SYNC:
		m.retrySync(now, e.Reason, after)
	case clientv1.CommandType_PULL:
		m.onPullError(now, e.ConvId, e.Reason, after)
	case clientv1.CommandType_READ:
		if c := m.convs[e.ConvId]; c != nil && c.read > 0 {
			c.readAt = now.Add(max(after, m.cfg.RetryBase))
			m.activate(c)
		}
	}
}

// Tick does what has become due.
func (m *Machine) Tick(now time.Time) { m.advance(now) }

// advance does everything that is due at now. Every input ends with it.
func (m *Machine) advance(now time.Time) {
	if !m.connected {
		return
	}
	m.pump(now)
	m.advanceSync(now)
	kept := m.active[:0]
	for _, c := range m.active {
		m.advanceConversation(now, c)
		if c.idle() {
			c.listed = false
			continue
		}
		kept = append(kept, c)
	}
	clear(m.active[len(kept):])
	m.active = kept
	m.advanceHistory(now)
}

// Deadline is when Tick has something to do; ok is false while nothing waits for time to pass.
func (m *Machine) Deadline() (at time.Time, ok bool) {
	if !m.connected {
		return time.Time{}, false
	}
	d := deadline{}
	m.pumpDeadline(&d)
	d.note(m.sync.dueAt)
	for _, c := range m.active {
		d.note(c.ackAt)
		d.note(c.readAt)
		switch {
		case c.pulling:
			d.note(c.pullDueAt)
		case m.pulls.out < m.cfg.PullsMax && c.history == nil:
			d.note(c.gapAt)
		}
		if c.history != nil {
			d.note(c.history.dueAt)
		}
	}
	return d.at, !d.at.IsZero()
}

// deadline finds the earliest of several times; zero times do not count.
type deadline struct{ at time.Time }

func (d *deadline) note(t time.Time) {
	if !t.IsZero() && (d.at.IsZero() || t.Before(d.at)) {
		d.at = t
	}
}

// Take hands over the effects since the last call, in the order they must be carried out.
func (m *Machine) Take() []Effect {
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// jittered is d times 1 to 1+spread, so that clients that were made to wait together do not come back together.
func (m *Machine) jittered(d time.Duration, spread float64) time.Duration {
	return d + time.Duration(float64(d)*spread*m.rnd.Float64())
}

// backoff is base doubled for each earlier try, at most limit, with up to half of it on top.
func (m *Machine) backoff(base, limit time.Duration, tries int) time.Duration {
	d := base
	for range tries {
		if d *= 2; d >= limit {
			d = limit
			break
		}
	}
	return m.jittered(d, 0.5)
}
