package stateclient

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// still is a driver that leaves everything to the test.
type still struct{}

func (still) run() {}

func (still) tick(int64) int64 { return never }

// model drives two lanes by hand, without goroutines, clocks or a network.
type model struct {
	t     *rapid.T
	relay *relay
	lanes [2]*lane
	peers []*Peer
	seqs  []uint64
	w     *watcher
	now   int64
}

func newModel(rt *rapid.T) *model {
	w := newWatcher(rt)
	cfg := quick("127.0.0.1:1")
	cfg.StreamsPerBackend = 1
	cfg.Queue = 40
	r := &relay{cfg: cfg, sink: w, log: quiet(), started: time.Now(), kick: make(chan struct{}, 1)}
	r.metrics, _ = newMetrics(nil, nil)
	m := &model{t: rt, relay: r, w: w, peers: peers(4), seqs: make([]uint64, 4), now: 1}
	b := newBackend(r, "127.0.0.1:1")
	for i := range m.lanes {
		m.lanes[i] = newLane(r, b)
		m.lanes[i].driver = still{}
	}
	for _, p := range m.peers {
		p.flight.lane.Store(m.lanes[0])
	}
	return m
}

func (m *model) lane(p *Peer) *lane { return p.flight.lane.Load() }

func (m *model) add() {
	k := rapid.IntRange(0, 3).Draw(m.t, "peer")
	p := m.peers[k]
	l := m.lane(p)
	age := time.Duration(rapid.IntRange(-100, 500).Draw(m.t, "age")) * time.Millisecond
	u := Uplink{Peer: p, Seq: m.seqs[k] + 1, Payload: make([]byte, 10), Received: m.relay.started.Add(time.Duration(m.now) - age)}
	if l.closed || !l.hasRoom(&u) {
		return
	}
	m.seqs[k]++
	c := m.w.conn(p.ConnID)
	c.taken = append(c.taken, u.Seq)
	l.add(&u, m.now)
}

func (m *model) send() {
	l := m.lanes[rapid.IntRange(0, 1).Draw(m.t, "lane")]
	for n := rapid.IntRange(1, 5).Draw(m.t, "batch"); n > 0 && l.queue.head != 0; n-- {
		i := l.queue.head
		if budget(&l.slab.items[i], m.now) == 0 {
			l.leave(i)
			continue
		}
		it := l.dequeue(i, m.now)
		it.encoding = rapid.IntRange(0, 9).Draw(m.t, "encoding") == 0
	}
}

func (m *model) answer() {
	k := rapid.IntRange(0, 4).Draw(m.t, "peer")
	seq := rapid.Uint64Range(0, 40).Draw(m.t, "seq")
	l := m.lanes[rapid.IntRange(0, 1).Draw(m.t, "lane")]
	if k < 4 && rapid.Bool().Draw(m.t, "right") {
		l = m.lane(m.peers[k])
		if h := m.peers[k].flight.head; h != 0 {
			seq = l.slab.items[h].uplink.Seq + seq%4
		}
	}
	l.deliver.Lock()
	defer l.deliver.Unlock()
	l.take(uint64(k+1), seq, answer{payload: []byte("x")})
	l.give()
}

func (m *model) pass() {
	m.now += int64(rapid.IntRange(0, 200).Draw(m.t, "ms")) * int64(time.Millisecond)
	for _, l := range m.lanes {
		l.expire(m.now)
	}
}

func (m *model) encoded(l *lane) {
	for i := range l.slab.items {
		l.slab.items[i].encoding = false
	}
}

func (m *model) end() {
	l := m.lanes[rapid.IntRange(0, 1).Draw(m.t, "lane")]
	if rapid.Bool().Draw(m.t, "queue") {
		l.settleQueue("")
		return
	}
	m.encoded(l)
	l.settleSent("")
}

func (m *model) move() {
	p := m.peers[rapid.IntRange(0, 3).Draw(m.t, "peer")]
	from := m.lane(p)
	to := m.lanes[0]
	if from == to {
		to = m.lanes[1]
	}
	h := p.flight.head
	if h == 0 || from.slab.items[h].where == inSent {
		return
	}
	from.moveTo(to, p, 1, m.now)
}

// check looks at everything that must be true between two steps.
func (m *model) check(rt *rapid.T) {
	held := 0
	for _, l := range m.lanes {
		n := 0
		for p := range l.chains() {
			last := int64(math.MinInt64)
			for i := p.flight.head; i != 0; i = l.slab.items[i].chain {
				it := &l.slab.items[i]
				if it.deadline < last {
					rt.Fatal("deadlines decrease along a chain")
				}
				last = it.deadline
				n++
			}
			if m.lane(p) != l {
				rt.Fatal("a chain on a lane that its connection is not on")
			}
		}
		if n != l.held || l.wheel.count != n || l.heldBytes != 10*n {
			rt.Fatalf("%d on chains, %d held, %d on the wheel, %d bytes", n, l.held, l.wheel.count, l.heldBytes)
		}
		held += n
	}
	if open := m.w.open(); open != held {
		rt.Fatalf("%d taken and not answered, %d held", open, held)
	}
	for _, p := range m.peers {
		if c := m.w.conn(p.ConnID); int(p.flight.pending) != len(c.taken)-c.next {
			rt.Fatalf("pending %d of %d", p.flight.pending, len(c.taken)-c.next)
		}
	}
}

// chains are the connections that have uplinks on the lane.
func (l *lane) chains() map[*Peer]bool {
	all := map[*Peer]bool{}
	for _, s := range l.conns.slots {
		if s.peer != nil {
			all[s.peer] = true
		}
	}
	return all
}

// A lane answers each uplink once and in order, whatever happens in which order, and everything by its deadline.
func TestLaneModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) { m.add() }, "send": func(*rapid.T) { m.send() },
			"answer": func(*rapid.T) { m.answer() }, "pass": func(*rapid.T) { m.pass() },
			"end": func(*rapid.T) { m.end() }, "move": func(*rapid.T) { m.move() },
			"": m.check,
		})
		for _, l := range m.lanes {
			m.encoded(l)
		}
		m.now += 2 * int64(m.relay.cfg.Timeout)
		for _, l := range m.lanes {
			l.expire(m.now)
		}
		if n := m.w.open(); n != 0 {
			rt.Fatalf("%d unanswered after every deadline", n)
		}
		m.check(rt)
	})
}

// The wheel yields everything that is due, and nothing else, however far the clock has run ahead of it.
func TestWheel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, w := newSlab(), newWheel(int64(300*time.Millisecond))
		now, left := int64(0), map[int32]int64{} // The latter: since when an item has been on the wheel.
		for range rapid.IntRange(1, 100).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "add") {
				i := s.take()
				s.items[i].deadline = now + int64(rapid.IntRange(-10, 300).Draw(rt, "ms"))*int64(time.Millisecond)
				w.add(&s, i, now)
				left[i] = now
				continue
			}
			now += int64(rapid.IntRange(0, 2000).Draw(rt, "ms")) * int64(time.Millisecond) / 3
			for i := w.due(&s, now); i != 0; i = w.due(&s, now) {
				if s.items[i].deadline > now {
					rt.Fatalf("%d ns early", s.items[i].deadline-now)
				}
				w.remove(&s, i)
				s.give(i)
				delete(left, i)
			}
			for i, since := range left {
				if late := now - max(s.items[i].deadline, since); late > w.tick {
					rt.Fatalf("%d ns late", late)
				}
			}
			if len(left) > 0 && w.next() <= now {
				rt.Fatal("next lies in the past")
			}
		}
	})
}
