// Package echo is a WebSocket endpoint on which every text or binary message comes back as it was, so that conformance
// suites can be pointed at the engine and the codec. It knows no commands, no login and no logic tier, and is not part of a
// gateway: nothing that is meant for a relay can come here.
package echo

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
)

const (
	// connections bounds the slots: suites run a few dozen cases at once.
	connections = 1024
	// FragmentsMax bounds the frames of one message: suites cut 4 MiB into pieces of 64 bytes, and may end with an empty one.
	FragmentsMax = 1<<16 + 1
	// upgradeMax bounds the time from accept to the request's end, idleMax the silence after it.
	upgradeMax = 5 * time.Second
	idleMax    = time.Minute
	// aheadBytes is how much a client may send beyond one largest message without reading, on an engine that reads on.
	aheadBytes = 1 << 20
)

// Config says where to listen, and what to allow.
type Config struct {
	// Addr is host:port; port 0 takes a free one.
	Addr string
	// MessageBytes bounds one message, inflated.
	MessageBytes int
	// TLS, when set, encrypts.
	TLS *tls.Config
	// Engine starts the engine.
	Engine func(c poller.Config, h poller.Handler, log *slog.Logger) (poller.Engine, error)
}

// Run serves until ctx ends. ready is told the address. An error says why it could not listen.
func Run(ctx context.Context, c Config, log *slog.Logger, ready func(net.Addr)) error {
	h := &handler{limits: codec.Limits{FrameBytes: c.MessageBytes, Fragments: FragmentsMax},
		upgrade: codec.UpgradeOptions{Deflate: true, Echo: true}, peers: make([]peer, connections)}
	// A message is queued when no more than a quarter is; what is compressed may be a little longer than what comes of it.
	pc := poller.Config{Connections: connections, LeftoverBytes: c.MessageBytes + c.MessageBytes>>7 + aheadBytes,
		OutboxBytes: 2*c.MessageBytes + aheadBytes, HandshakeTimeout: upgradeMax}
	h.outboxHigh = pc.OutboxBytes / 4
	e, err := c.Engine(pc, h, log)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	defer e.Shutdown()
	addr, err := e.Listen(poller.Listener{Addr: c.Addr, TLS: c.TLS})
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	ready(addr)
	<-ctx.Done()
	return nil
}

// handler is what the engine calls.
type handler struct {
	// Fixed after Run.
	limits     codec.Limits
	upgrade    codec.UpgradeOptions
	outboxHigh int

	peers []peer // by slot; each belongs to the lease of its connection
}

// peer is one connection.
type peer struct {
	stream   codec.Stream
	upgraded bool
	active   time.Duration
}

// Open implements poller.Handler.
func (h *handler) Open(c poller.Conn, info poller.Info, now time.Duration) poller.Verdict {
	h.peers[c.ID().Slot()] = peer{active: now}
	c.SetTimer(info.Accepted + upgradeMax)
	return poller.Rearm
}

// Data implements poller.Handler. What comes back waits in the outbox; while that is full, nothing more is taken.
func (h *handler) Data(c poller.Conn, in poller.Input) (used int, v poller.Verdict) {
	p := &h.peers[c.ID().Slot()]
	p.active = in.Now
	for {
		if c.Queued() > h.outboxHigh {
			return used, poller.Park
		}
		n, more, v := h.take(p, c, in.Bytes[used:])
		used += n
		if v == poller.Hangup || !more {
			return used, v
		}
	}
}

// take handles what stands at the start of buf; more is false when that is nothing whole.
func (h *handler) take(p *peer, c poller.Conn, buf []byte) (n int, more bool, v poller.Verdict) {
	if !p.upgraded {
		return h.request(p, c, buf)
	}
	f, n, err := p.stream.Next(buf, &h.limits)
	if err != nil {
		why := codec.ReasonOf(err)
		c.Queue(p.stream.AppendClose(nil, why.Code(), why.String()))
		return n, false, poller.Hangup
	}
	switch f.Kind {
	case codec.KindNone:
		return n, false, poller.Rearm
	case codec.KindText, codec.KindBinary:
		framed, err := p.stream.AppendEcho(nil, f.Kind, f.Payload)
		if err != nil {
			c.Queue(p.stream.AppendClose(nil, reason.Internal.Code(), ""))
			return n, false, poller.Hangup
		}
		c.Queue(framed)
	case codec.KindPing: // each by itself: suites want to see all of them
		c.Queue(p.stream.AppendPong(nil, f.Payload))
	case codec.KindClose:
		c.Queue(p.stream.AppendClose(nil, f.Code, ""))
		return n, false, poller.Hangup
	}
	return n, true, poller.Rearm
}

// request handles the upgrade.
func (h *handler) request(p *peer, c poller.Conn, buf []byte) (n int, more bool, v poller.Verdict) {
	u, n, err := codec.ParseUpgrade(buf, &h.upgrade)
	switch {
	case err != nil:
		c.Queue(codec.AppendUpgradeError(nil, err))
		return 0, false, poller.Hangup
	case n == 0:
		return 0, false, poller.Rearm
	}
	p.stream, p.upgraded = codec.NewStream(u.Protocol), true
	c.Queue(codec.AppendUpgradeResponse(nil, &u))
	c.SetTimer(p.active + idleMax)
	return n, true, poller.Rearm
}

// Timeout implements poller.Handler.
func (h *handler) Timeout(c poller.Conn, now time.Duration) poller.Verdict {
	p := &h.peers[c.ID().Slot()]
	why := reason.IdleTimeout
	switch {
	case !p.upgraded:
		why = reason.HandshakeTimeout
		c.Queue(codec.AppendUpgradeError(nil, &codec.UpgradeError{Reason: why}))
		return poller.Hangup
	case now < p.active+idleMax:
		c.SetTimer(p.active + idleMax)
		if c.Queued() > h.outboxHigh {
			return poller.Park
		}
		return poller.Rearm
	}
	c.Queue(p.stream.AppendClose(nil, why.Code(), why.String()))
	return poller.Hangup
}

// Closed implements poller.Handler.
func (h *handler) Closed(id poller.ID, _ poller.Cause) { h.peers[id.Slot()] = peer{} }

// PassEnd implements poller.Handler.
func (h *handler) PassEnd(int) {}
