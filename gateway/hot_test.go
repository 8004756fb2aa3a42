package gateway

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// stillEngine is an engine in which nothing happens by itself: the hot path is called by hand.
type stillEngine struct {
	*fakeEngine
	queued int
	status poller.Status // of every Queue
}

func (e *stillEngine) Conns() poller.Conns { return e }
func (e *stillEngine) Shutdown()           {}

func (e *stillEngine) Queue(_ poller.ID, b []byte) poller.Status {
	e.queued += len(b)
	return e.status
}
func (e *stillEngine) Flush(poller.ID) poller.Status { return poller.StatusWritten }
func (e *stillEngine) Wake(poller.ID)                {}
func (e *stillEngine) Close(poller.ID, []byte) bool  { return true }

// stillConn is one connection of it.
type stillConn struct {
	e  *stillEngine
	id poller.ID
}

func (c *stillConn) ID() poller.ID                { return c.id }
func (c *stillConn) Loop() int                    { return 0 }
func (c *stillConn) Queue(b []byte) poller.Status { return c.e.Queue(c.id, b) }
func (c *stillConn) Queued() int                  { return 0 }
func (c *stillConn) SetTimer(time.Duration)       {}

// stillRelay keeps what it is given.
type stillRelay struct{ held []stateclient.Uplink }

func (r *stillRelay) Submit(pass []stateclient.Uplink, taken []bool) {
	r.held = append(r.held, pass...)
	for i := range pass {
		taken[i] = true
	}
}
func (r *stillRelay) Authenticate(context.Context, stateclient.Login) (stateclient.Grant, error) {
	return stateclient.Grant{}, errFake
}
func (r *stillRelay) Ready() bool { return true }
func (r *stillRelay) Close()      {}

// steady is a gateway with live connections and no goroutine on the hot path.
type steady struct {
	g     *Gateway
	h     handler
	e     *stillEngine
	relay *stillRelay
	conns []*stillConn
	now   time.Duration
	frame []byte
	work  []byte
	ack   []byte
	down  []stateclient.Downlink
}

func newSteady(tb testing.TB, conns int) *steady {
	cfg := talkConfig()
	cfg.Limits.Uplink.MessagesPerSecond, cfg.Limits.Uplink.MessagesBurst = 1<<20, 1<<24
	cfg.Limits.Uplink.BytesPerSecond, cfg.Limits.Uplink.BytesBurst = 1<<30, 1<<30
	s := &steady{e: &stillEngine{status: poller.StatusQueued}, relay: &stillRelay{}, now: time.Hour}
	g, err := New(cfg, Deps{Log: slog.New(slog.DiscardHandler), Routes: newFakeRoutes().open,
		Engine: func(poller.Config, poller.Handler, *slog.Logger) (poller.Engine, error) { return s.e, nil },
		Relay: func(stateclient.Config, stateclient.Sink, stateclient.Deps) (stateclient.Relay, error) {
			return s.relay, nil
		}})
	if err != nil {
		tb.Fatal(err)
	}
	if err := g.startRoutes(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	if err := g.startRelay(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		for i := len(g.closers) - 1; i >= 0; i-- {
			g.closers[i]()
		}
	})
	if err := g.startEngine(); err != nil {
		tb.Fatal(err)
	}
	s.g, s.h = g, handler{g}
	for i := range conns {
		c := &stillConn{e: s.e, id: poller.ID(i) | 1<<32}
		s.conns = append(s.conns, c)
		s.h.Open(c, poller.Info{Listener: 0, Remote: netip.MustParseAddrPort("192.0.2.1:4711"), Accepted: s.now}, s.now)
		p := g.peers.locked(c.id)
		p.stream = codec.NewStream(codec.WebSocket)
		p.who = &stateclient.Peer{ConnID: uint64(c.id), UID: "alice", DeviceID: "phone", RemoteAddr: "192.0.2.1:4711"}
		p.session.loggedIn(s.now, 0)
		p.rare = nil
		p.mu.Unlock()
	}
	command := codec.AppendCommand(nil, clientv1.CommandType_MESSAGEUP, 0, &clientv1.MessageUp{Uuid: "0123456789abcdef", ReceiverId: "bob", Content: "hello"})
	s.frame, _ = codec.AppendClientFrame(codec.WebSocket, nil, command, [4]byte{1, 2, 3, 4})
	s.ack = codec.AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: "0123456789abcdef", MsgId: "12345678901234567", ConvId: "u:alice:bob", Seq: 42, ServerAtMs: 1 << 40})
	s.work = make([]byte, 0, len(s.frame))
	return s
}

// round is one pass with perConn messages of each connection, and the batch of their answers.
func (s *steady) round(perConn int) {
	s.now += time.Millisecond
	for _, c := range s.conns {
		s.work = s.work[:0]
		for range perConn {
			s.work = append(s.work, s.frame...)
		}
		s.h.Data(c, poller.Input{Bytes: s.work, Now: s.now})
	}
	s.h.PassEnd(0)
	s.down = s.down[:0]
	for i := range s.relay.held {
		up := &s.relay.held[i]
		s.down = append(s.down, stateclient.Downlink{ConnID: up.Peer.ConnID, Seq: up.Seq, Payload: s.ack})
	}
	s.relay.held = s.relay.held[:0]
	sink{s.g}.Answers(s.down)
}

// TestHotPathAllocatesNothing holds a budget: read, cut, scan, limit, enqueue; ack,
// write.
func TestHotPathAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool forget on purpose")
	}
	s := newSteady(t, 50)
	s.round(16)
	if n := testing.AllocsPerRun(200, func() { s.round(16) }); n > 0 {
		t.Errorf("a round of 800 messages and answers allocates %v times", n)
	}
	sum := s.g.books()
	if sum.inflight != 0 || sum.received != sum.results[resultOK] || sum.received == 0 {
		t.Errorf("received %d, results %v, in flight %d", sum.received, sum.results, sum.inflight)
	}
}

// TestAnswerToAClosingConnection: an answer that the engine does not take any more is lost, not acked.
func TestAnswerToAClosingConnection(t *testing.T) {
	for _, status := range []poller.Status{poller.StatusGone, poller.StatusOverflow} {
		s := newSteady(t, 1)
		s.e.status = status
		s.round(3)
		sum := s.g.books()
		if sum.received != 3 || sum.results[resultLost] != 3 || sum.inflight != 0 {
			t.Errorf("status %d: received %d, results %v, in flight %d", status, sum.received, sum.results, sum.inflight)
		}
	}
}

// BenchmarkMessage is what the gateway's own code costs for one message up and its answer down, system calls and relay
// aside.
func BenchmarkMessage(b *testing.B) {
	for _, shape := range []struct {
		name           string
		conns, perConn int
	}{{"1000x1", 1000, 1}, {"50x16", 50, 16}, {"1x1", 1, 1}} {
		b.Run(shape.name, func(b *testing.B) {
			s := newSteady(b, shape.conns)
			s.round(shape.perConn)
			b.ReportAllocs()
			for n := 0; n < b.N; n += shape.conns * shape.perConn {
				s.round(shape.perConn)
			}
		})
	}
}
