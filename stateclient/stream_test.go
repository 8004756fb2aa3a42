package stateclient

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

func answeredAll(t *testing.T, d Downlink) {
	if want := fmt.Sprintf("%d/%d", d.ConnID, d.Seq); d.Outcome != Answered || d.Kind == KindFrame && string(d.Payload) != want {
		t.Errorf("outcome %d (%s), payload %q, want %q", d.Outcome, d.Detail, d.Payload, want)
	}
}

func TestOrderUnderRandomDelays(t *testing.T) {
	g := newLedger(t)
	b := (&logicTier{relay: g.jittery("a", 3*time.Millisecond)}).start(t, "")
	w := newWatcher(t)
	w.onAnswer = func(d Downlink) { answeredAll(t, d) }
	c := newCrowd(w, 40, 8)
	cfg := quick(b.addr)
	cfg.Timeout = soon
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	c.run(r)
	eventually(t, "5,000 answers", func() bool { return w.answered() >= 5000 })
	c.end(t)
}

// A backend that is killed answers nothing more; what was in flight is Broken or ran out of time, what is in the queue
// is sent to its successor, and every connection is announced there again.
func TestBackendKilledAndRestarted(t *testing.T) {
	g := newLedger(t)
	b := (&logicTier{relay: g.jittery("a", 2*time.Millisecond)}).start(t, "")
	w := newWatcher(t)
	c := newCrowd(w, 30, 4)
	cfg := quick(b.addr)
	cfg.Breaker.Failures = 1_000_000
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	c.run(r)
	for range 3 {
		n := g.count("a")
		eventually(t, "answers", func() bool { return g.count("a") > n+200 })
		b.kill()
		eventually(t, "not ready", func() bool { return !r.Ready() })
		b.start(t, b.addr)
		eventually(t, "ready again", r.Ready)
	}
	n := w.count(Answered)
	eventually(t, "answers at the end", func() bool { return w.count(Answered) > n+200 })
	c.end(t)
	if w.count(Broken) == 0 {
		t.Error("nothing was in flight when the backend was killed")
	}
	for _, o := range []Outcome{Refused, Exhausted, Failed, FailedUnknown} {
		if n := w.count(o); n > 0 {
			t.Errorf("%d uplinks with outcome %d", n, o)
		}
	}
}

// A backend that takes everything and answers nothing, pings included, costs each uplink its deadline, opens the
// breaker, and is left after a second of silence.
func TestBackendHangs(t *testing.T) {
	g := newLedger(t)
	hang := make(chan struct{})
	b := &logicTier{relay: func(s batches) error {
		see := g.stream("a")
		for {
			in, err := s.Recv()
			if err != nil {
				return ended(err)
			}
			for _, it := range in.Items {
				see(it)
			}
			if len(in.Items) > 0 {
				<-hang
			}
			if err := s.Send(&statev1.DownlinkBatch{}); err != nil {
				return err
			}
		}
	}}
	b.start(t, "")
	w := newWatcher(t)
	cfg := quick(b.addr)
	cfg.Timeout = 100 * time.Millisecond
	cfg.StreamsPerBackend = 1
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	ps, seq := peers(30), uint64(0)
	submit := func() {
		seq++
		w.submit(r, pass(ps, seq))
		eventually(t, "answered", func() bool { return w.open() == 0 })
	}
	eventually(t, "breaker open", func() bool { // on a busy machine some run out of time before they are sent, which opens nothing
		submit()
		return !r.Ready()
	})
	if w.count(TimedOut) == 0 {
		t.Error("nothing timed out")
	}
	refused := w.count(NoBackend)
	eventually(t, "refused at once", func() bool {
		submit()
		return w.count(NoBackend) > refused
	})
	eventually(t, "stream opened anew", func() bool { return b.streams.Load() >= 2 })
	close(hang)
	eventually(t, "ready again", r.Ready)
}

// An item that waits for a backend until its deadline was never sent.
func TestNoBackend(t *testing.T) {
	w := newWatcher(t)
	cfg := quick("127.0.0.1:1")
	cfg.Timeout = 50 * time.Millisecond
	r := open(t, cfg, w)
	w.submit(r, pass(peers(10), 1))
	eventually(t, "answered", func() bool { return w.count(NoBackend) == 10 })
	if r.Ready() {
		t.Error("ready without a backend")
	}
}

// Answers that come after the deadline are dropped and counted, and nothing is answered twice.
func TestLateAnswers(t *testing.T) {
	g, answer := newLedger(t), make(chan struct{})
	b := (&logicTier{relay: func(s batches) error { return g.honest("a")(held{s, answer}) }}).start(t, "")
	w := newWatcher(t)
	cfg := quick(b.addr)
	cfg.Breaker.Failures = 1_000_000
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	ps := peers(20)
	for seq := uint64(1); seq <= 5; seq++ {
		w.submit(r, pass(ps, seq))
	}
	eventually(t, "out of time", func() bool { return w.answered() == 100 })
	close(answer)
	// On a busy machine some may not have been sent in time; to what was sent, an answer comes.
	if w.count(TimedOut) == 0 || w.count(TimedOut)+w.count(NoBackend) != 100 {
		t.Errorf("outcomes %v", w.by)
	}
	late := r.(*relay).metrics.late
	eventually(t, "late answers counted", func() bool { return counted(t, late) == float64(w.count(TimedOut)) })
}

// held sends answers once it is allowed to; pings are answered at once.
type held struct {
	batches
	until chan struct{}
}

func (h held) Send(out *statev1.DownlinkBatch) error {
	if len(out.Items) > 0 {
		select {
		case <-h.until:
		case <-h.Context().Done():
		}
	}
	return h.batches.Send(out)
}

// A draining backend loses nothing: what it was sent it answers, what it was not sent goes to the other one, and it is
// used again when it comes back.
func TestDraining(t *testing.T) {
	g := newLedger(t)
	drain := make(chan struct{})
	a := &logicTier{}
	a.relay = func(s batches) error {
		see := g.stream("a")
		for {
			in, err := s.Recv()
			if err != nil {
				return ended(err)
			}
			out := &statev1.DownlinkBatch{}
			for _, it := range in.Items {
				see(it)
				out.Items = append(out.Items, &statev1.DownlinkItem{ConnId: it.ConnId, ConnSeq: it.ConnSeq, Payload: it.Payload})
			}
			select {
			case <-drain:
				out.Draining = true
			default:
			}
			if err := s.Send(out); err != nil {
				return err
			}
		}
	}
	a.start(t, "")
	b := (&logicTier{relay: g.honest("b")}).start(t, "")
	w := newWatcher(t)
	w.onAnswer = func(d Downlink) { answeredAll(t, d) }
	c := newCrowd(w, 40, 4)
	cfg := quick(a.addr, b.addr)
	cfg.Timeout = soon
	r := open(t, cfg, w)
	eventually(t, "both up", func() bool { return upLanes(r) == 4 })
	c.run(r)
	eventually(t, "both used", func() bool { return g.count("a") > 200 && g.count("b") > 200 })
	close(drain)
	eventually(t, "a left", func() bool { return upLanes(r) == 2 })
	n := g.count("b")
	eventually(t, "b goes on", func() bool { return g.count("b") > n+500 })
	c.end(t)
}

func upLanes(r Relay) (n int) {
	for _, b := range r.(*relay).known() {
		for _, l := range b.lanes {
			if l.up.Load() {
				n++
			}
		}
	}
	return n
}

// A backend that says that it drains as soon as it is asked gets nothing, and costs nothing.
func TestDrainingFromTheStart(t *testing.T) {
	g := newLedger(t)
	a := (&logicTier{relay: func(s batches) error {
		for {
			in, err := s.Recv()
			if err != nil {
				return ended(err)
			}
			if len(in.Items) > 0 {
				t.Error("an item for a backend that drains")
			}
			if err := s.Send(&statev1.DownlinkBatch{Draining: true}); err != nil {
				return err
			}
		}
	}}).start(t, "")
	b := (&logicTier{relay: g.honest("b")}).start(t, "")
	w := newWatcher(t)
	w.onAnswer = func(d Downlink) { answeredAll(t, d) }
	c := newCrowd(w, 40, 4)
	cfg := quick(a.addr, b.addr)
	cfg.Timeout = soon
	r := open(t, cfg, w)
	eventually(t, "b up", func() bool { return upLanes(r) == 2 })
	eventually(t, "a asked", func() bool { return a.streams.Load() >= 2 })
	c.run(r)
	eventually(t, "answers", func() bool { return w.answered() > 1000 })
	c.end(t)
}

// A batch has at most 512 items, the relay's own announcements among them, and about 1 MiB at most.
func TestBatchBounds(t *testing.T) {
	var items, bytes atomic.Int64
	b := (&logicTier{relay: func(s batches) error {
		return echo(nil)(measured{s, &items, &bytes})
	}}).start(t, "")
	w := newWatcher(t)
	cfg := quick(b.addr)
	cfg.Timeout = soon
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	w.submit(r, pass(peers(5000), 1)) // None of them announced.
	big := pass(peers(300), 1)
	for i := range big {
		big[i].Peer = peer(10_000 + i)
		big[i].Payload = make([]byte, 30_000)
	}
	w.submit(r, big)
	eventually(t, "answered", func() bool { return w.count(Answered) == 5300 })
	if n := items.Load(); n > 512 || n < 100 {
		t.Errorf("a batch of %d items", n)
	}
	if n := bytes.Load(); n > 1<<20+1<<16 || n < 1<<19 {
		t.Errorf("a batch of %d bytes", n)
	}
}

// measured notes the largest batches.
type measured struct {
	batches
	items, bytes *atomic.Int64
}

func (m measured) Recv() (*statev1.UplinkBatch, error) {
	in, err := m.batches.Recv()
	m.items.Store(max(m.items.Load(), int64(len(in.GetItems()))))
	m.bytes.Store(max(m.bytes.Load(), int64(in.SizeVT())))
	return in, err
}

// Close answers what a removed backend still holds, and does not wait for it.
func TestCloseWithARemovedBackend(t *testing.T) {
	b := (&logicTier{relay: reply(func(*statev1.UplinkItem) *statev1.DownlinkItem { return nil })}).start(t, "")
	w := newWatcher(t)
	cfg := quick(b.addr)
	cfg.Timeout = time.Minute
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	w.submit(r, pass(peers(10), 1))
	r.(*relay).adopt([]string{"127.0.0.1:1"})
	r.Close()
	if n := w.answered(); n != 10 {
		t.Errorf("%d answers", n)
	}
	r.Close()
}

// Strings that are not UTF-8 cannot spoil the batch that they are in.
func TestUncleanStrings(t *testing.T) {
	var seen atomic.Int32
	b := &logicTier{relay: echo(func(it *statev1.UplinkItem) {
		if it.ConnSeq > 0 && it.Platform != "" && it.SessionId != "s" {
			t.Errorf("platform %q, session %q", it.Platform, it.SessionId)
		}
		seen.Add(1)
	})}
	b.stock = true // Its codec refuses a message with such a string.
	b.start(t, "")
	w := newWatcher(t)
	cfg := quick(b.addr)
	cfg.Timeout = soon
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	ps := peers(10)
	ps[3].Platform, ps[3].SessionID = "\xff\xfe", "s"
	us := pass(ps, 1)
	us[5].TraceParent = "\xc3\x28"
	w.submit(r, us)
	eventually(t, "answered", func() bool { return w.count(Answered) == 10 })
	if n := seen.Load(); n != 20 {
		t.Errorf("%d items", n)
	}
}
