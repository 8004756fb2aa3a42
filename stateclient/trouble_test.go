package stateclient

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// lie is one way in which a backend can treat an item.
type lie int

const (
	truth lie = iota
	silence
	twice
	foreignSeq
	futureSeq
	pastSeq
	foreignConn
	badStatus
	oversize
	atTheEnd
	garbage
	cutOff
	fail
	lies
)

// garbled is a message that no protobuf decoder takes.
type garbled struct{}

func (garbled) SizeVT() int { return 4 }

func (garbled) MarshalToSizedBufferVT(b []byte) (int, error) { return copy(b, "\xff\xff\xff\xff"), nil }

// liar answers the items in the order of their arrival as script says, and honestly when it has come to its end.
func liar(script []lie) func(batches) error {
	var at atomic.Int64
	return func(s batches) error {
		for {
			in, err := s.Recv()
			if err != nil {
				return ended(err)
			}
			out := &statev1.DownlinkBatch{}
			var last []*statev1.DownlinkItem
			for _, it := range in.Items {
				l := truth
				if n := int(at.Add(1)) - 1; n < len(script) {
					l = script[n]
				}
				d := &statev1.DownlinkItem{ConnId: it.ConnId, ConnSeq: it.ConnSeq, Payload: it.Payload}
				switch l {
				case garbage:
					return errors.Join(s.Send(out), s.SendMsg(garbled{}))
				case cutOff:
					return s.Send(out)
				case fail:
					return errors.Join(s.Send(out), status.Error(codes.DataLoss, "lost"))
				case atTheEnd:
					last = append([]*statev1.DownlinkItem{d}, last...)
				default:
					out.Items = append(out.Items, twist(l, d)...)
				}
			}
			out.Items = append(out.Items, last...)
			if err := s.Send(out); err != nil {
				return err
			}
		}
	}
}

func twist(l lie, d *statev1.DownlinkItem) []*statev1.DownlinkItem {
	switch l {
	case silence:
		return nil
	case twice:
		return []*statev1.DownlinkItem{d, d}
	case foreignSeq:
		d.ConnSeq += 1000
	case futureSeq:
		d.ConnSeq++
	case pastSeq:
		d.ConnSeq--
	case foreignConn:
		d.ConnId += 1000
	case badStatus:
		d.Status = uint32(d.ConnSeq%40) + 1
	case oversize:
		d.Payload = make([]byte, 100_000)
	}
	return []*statev1.DownlinkItem{d}
}

// Whatever a backend does, every uplink that was taken has one answer, in the order of its connection.
func TestLyingBackend(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// Half of the backends never end a stream, or hardly any uplink would live to see another lie.
		worst := rapid.SampledFrom([]lie{garbage, lies}).Draw(rt, "worst")
		script := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, int(worst)-1), func(i int) lie { return lie(i) }), 0, 60).Draw(rt, "script")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 20), 1, 8).Draw(rt, "passes")
		b := (&logicTier{relay: liar(script)}).start(t, "")
		defer b.kill()
		w := newWatcher(t)
		cfg := quick(b.addr)
		cfg.Timeout = 40 * time.Millisecond
		cfg.StreamsPerBackend = 1
		r, err := New(cfg, w, Deps{Log: quiet()})
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		eventually(t, "ready", r.Ready)
		ps, seq := peers(3), []uint64{0, 0, 0}
		for _, n := range sizes {
			var us []Uplink
			for i := range n {
				k := i * i % 3
				seq[k]++
				us = append(us, frame(ps[k], seq[k]))
			}
			w.submit(r, us)
		}
		eventually(t, "everything answered", func() bool { return w.open() == 0 })
		if t.Failed() {
			rt.Fatal("the contract was broken")
		}
	})
}

// A refused connection is told when there is room, its uplinks keep their order, and nothing is lost.
func TestQueueFullAndRoom(t *testing.T) {
	for _, mode := range []string{ModeStream, ModeUnary} {
		t.Run(mode, func(t *testing.T) {
			g := newLedger(t)
			b := (&logicTier{
				relay: g.jittery("a", time.Millisecond),
				receive: func(_ context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
					return &statev1.ReceiveMessageResponse{ResponsePayload: req.Payload}, nil
				},
			}).start(t, "")
			w := newWatcher(t)
			w.onAnswer = func(d Downlink) { answeredAll(t, d) }
			c := newCrowd(w, 100, 8)
			rooms := atomic.Int32{}
			cfg := quick(b.addr)
			cfg.Mode, cfg.Timeout, cfg.Queue, cfg.StreamsPerBackend = mode, soon, 64, 2
			cfg.Room = func(conns []uint64) {
				rooms.Add(1)
				c.room(conns)
			}
			r := open(t, cfg, w)
			eventually(t, "ready", r.Ready)
			c.run(r)
			eventually(t, "3,000 answers", func() bool { return w.answered() >= 3000 })
			c.end(t)
			if rooms.Load() == 0 {
				t.Error("the queue was never full")
			}
			for _, l := range r.(*relay).known()[0].lanes {
				l.mu.Lock()
				if l.held != 0 || l.heldBytes != 0 || l.queued != 0 || l.wheel.count != 0 || l.conns.count != 0 {
					t.Errorf("left behind: %d items, %d bytes, %d queued, %d on the wheel, %d connections",
						l.held, l.heldBytes, l.queued, l.wheel.count, l.conns.count)
				}
				l.mu.Unlock()
			}
		})
	}
}

// Backends come and go under load: nothing is lost while they go in order, and each connection keeps its order over all
// of them.
func TestBackendsAddedAndRemoved(t *testing.T) {
	g := newLedger(t)
	names := []string{"a", "b", "c"}
	var addrs []string
	for _, n := range names {
		addrs = append(addrs, (&logicTier{relay: g.jittery(n, 2*time.Millisecond)}).start(t, "").addr)
	}
	w := newWatcher(t)
	w.onAnswer = func(d Downlink) { answeredAll(t, d) }
	c := newCrowd(w, 60, 4)
	cfg := quick(addrs[0])
	cfg.Timeout = soon
	r := open(t, cfg, w).(*relay)
	eventually(t, "ready", r.Ready)
	c.run(r)
	for _, use := range [][]int{{0, 1}, {1}, {1, 2}, {0, 1, 2}, {2}, {0, 2}} {
		set, before := []string{}, map[string]int{}
		for _, i := range use {
			set = append(set, addrs[i])
			before[names[i]] = g.count(names[i])
		}
		r.adopt(set)
		for _, i := range use {
			eventually(t, "backend "+names[i]+" used", func() bool { return g.count(names[i]) > before[names[i]]+100 })
		}
	}
	c.end(t)
	g.mu.Lock()
	defer g.mu.Unlock()
	moved := 0
	for _, on := range g.moves {
		if len(on) > 1 {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no connection moved")
	}
}

// A backend found by name is followed; a look-up that fails changes nothing.
func TestDiscovery(t *testing.T) {
	b := (&logicTier{relay: echo(nil)}).start(t, "")
	_, port, _ := net.SplitHostPort(b.addr)
	var asked atomic.Int32
	cfg := quick("x:1")
	cfg.Targets = "dns:///logic.test:" + port
	w := newWatcher(t)
	r, err := New(cfg, w, Deps{Log: quiet(), Lookup: func(_ context.Context, host string) ([]string, error) {
		if host != "logic.test" {
			t.Errorf("looked up %q", host)
		}
		if asked.Add(1) == 1 {
			return nil, errors.New("no such host")
		}
		return []string{"127.0.0.1", "127.0.0.1"}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.submit(r, pass(peers(3), 1))
	eventually(t, "answered without a backend", func() bool { return w.count(NoBackend) == 3 })
	eventually(t, "ready", r.Ready)
	seq := uint64(1)
	eventually(t, "answered", func() bool { // a busy machine may need more than the time that one of them has
		seq++
		w.submit(r, pass(peers(3), seq))
		eventually(t, "answered somehow", func() bool { return w.open() == 0 })
		return w.count(Answered) >= 3
	})
	if n := len(r.(*relay).known()); n != 1 {
		t.Errorf("%d backends", n)
	}
}

// hole is a TCP proxy that can stop passing anything on, without closing anything.
type hole struct {
	lis  net.Listener
	to   string
	mu   sync.Mutex
	cut  chan struct{}
	open []net.Conn
	wg   sync.WaitGroup
}

func newHole(t *testing.T, to string) *hole {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{lis: lis, to: to, cut: make(chan struct{})}
	h.wg.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			h.pass(c)
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		h.mu.Lock()
		for _, c := range h.open {
			_ = c.Close()
		}
		h.mu.Unlock()
		h.wg.Wait()
	})
	return h
}

func (h *hole) pass(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = append(h.open, c)
	select {
	case <-h.cut:
		return // Accepted by the kernel, and no byte goes anywhere.
	default:
	}
	d, err := net.Dial("tcp", h.to)
	if err != nil {
		return
	}
	h.open = append(h.open, d)
	cut := h.cut
	for _, p := range [][2]net.Conn{{c, d}, {d, c}} {
		h.wg.Go(func() {
			buf := make([]byte, 4096)
			for {
				n, err := p[0].Read(buf)
				select {
				case <-cut:
					_, _ = io.Copy(io.Discard, p[0])
					return
				default:
				}
				if _, err2 := p[1].Write(buf[:n]); err != nil || err2 != nil {
					_ = p[1].Close()
					return
				}
			}
		})
	}
}

func (h *hole) cutOff() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.cut)
}

func (h *hole) heal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = make(chan struct{})
}

// A network that swallows everything is noticed without the help of TCP, and healed without a restart.
func TestBlackHole(t *testing.T) {
	g := newLedger(t)
	b := (&logicTier{relay: g.honest("a")}).start(t, "")
	h := newHole(t, b.addr)
	w := newWatcher(t)
	c := newCrowd(w, 10, 2)
	cfg := quick(h.lis.Addr().String())
	cfg.Timeout = 100 * time.Millisecond
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	c.run(r)
	eventually(t, "answers", func() bool { return w.count(Answered) > 100 })
	h.cutOff()
	eventually(t, "not ready", func() bool { return !r.Ready() })
	eventually(t, "every stream given up", func() bool { return upLanes(r) == 0 })
	h.heal()
	eventually(t, "ready again", r.Ready)
	n := w.count(Answered)
	eventually(t, "answers again", func() bool { return w.count(Answered) > n+100 })
	c.end(t)
	if w.count(TimedOut) == 0 {
		t.Error("nothing was in flight when the network was cut")
	}
}
