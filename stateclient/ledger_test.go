package stateclient

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

type batches = grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]

// ledger is what several backends saw together, held to what the relay promises them: of each connection, a Connect
// before anything else on every stream, frames in order over all streams and backends, none twice, and nothing after
// its Disconnect.
type ledger struct {
	t testing.TB

	mu    sync.Mutex
	last  map[uint64]uint64
	ended map[uint64]bool
	seen  map[string]int
	moves map[uint64]map[string]bool
}

func newLedger(t testing.TB) *ledger {
	return &ledger{t: t, last: map[uint64]uint64{}, ended: map[uint64]bool{}, seen: map[string]int{}, moves: map[uint64]map[string]bool{}}
}

// stream returns what notes the items of one stream to the backend named.
func (g *ledger) stream(name string) func(it *statev1.UplinkItem) {
	announced := map[uint64]bool{}
	return func(it *statev1.UplinkItem) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if it.BudgetMs == 0 || it.Uid == "" {
			g.t.Errorf("item without budget or uid: %v", it)
		}
		if it.Kind == statev1.UplinkKind_UPLINK_KIND_CONNECT {
			announced[it.ConnId] = true
		} else if it.Kind == statev1.UplinkKind_UPLINK_KIND_FRAME && !announced[it.ConnId] {
			g.t.Errorf("%s: connection %d: frame %d without a Connect on its stream", name, it.ConnId, it.ConnSeq)
		}
		if it.ConnSeq == 0 {
			return
		}
		if it.ConnSeq <= g.last[it.ConnId] || g.ended[it.ConnId] {
			g.t.Errorf("%s: connection %d: %d after %d", name, it.ConnId, it.ConnSeq, g.last[it.ConnId])
		}
		g.last[it.ConnId] = it.ConnSeq
		g.ended[it.ConnId] = it.Kind == statev1.UplinkKind_UPLINK_KIND_DISCONNECT
		g.seen[name]++
		if g.moves[it.ConnId] == nil {
			g.moves[it.ConnId] = map[string]bool{}
		}
		g.moves[it.ConnId][name] = true
	}
}

func (g *ledger) count(name string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[name]
}

// honest answers everything that the ledger sees.
func (g *ledger) honest(name string) func(batches) error {
	return func(s batches) error { return echo(g.stream(name))(s) }
}

// jittery answers in order per connection and in any order between them, after random delays: every connection has a
// goroutine of its own, as a logic tier might have.
func (g *ledger) jittery(name string, most time.Duration) func(batches) error {
	return func(s batches) error {
		see := g.stream(name)
		var wg sync.WaitGroup
		var sending sync.Mutex
		lanes := map[uint64]chan *statev1.UplinkItem{}
		defer func() {
			for _, c := range lanes {
				close(c)
			}
			wg.Wait()
		}()
		send := func(items ...*statev1.DownlinkItem) {
			sending.Lock()
			defer sending.Unlock()
			_ = s.Send(&statev1.DownlinkBatch{Items: items})
		}
		for {
			in, err := s.Recv()
			if err != nil {
				return ended(err)
			}
			if len(in.Items) == 0 {
				send()
			}
			for _, it := range in.Items {
				see(it)
				c := lanes[it.ConnId]
				if c == nil {
					c = make(chan *statev1.UplinkItem, 10_000)
					lanes[it.ConnId] = c
					wg.Go(func() {
						for it := range c {
							pause(s, time.Duration(rand.Int64N(int64(most))))
							send(&statev1.DownlinkItem{ConnId: it.ConnId, ConnSeq: it.ConnSeq, Payload: it.Payload})
						}
					})
				}
				c <- it
			}
		}
	}
}

// pause is the slowness of a backend; it ends with the stream.
func pause(s batches, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.Context().Done():
	}
}

// crowd submits frames of many connections for as long as it runs, each connection with a window of unanswered ones, as
// the gateway's sessions do. Refused uplinks are submitted again when Room says so.
type crowd struct {
	w     *watcher
	relay Relay
	peers []*Peer

	mu     sync.Mutex
	next   []uint64
	open   []int
	window int
	parked map[uint64]bool
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}
}

func newCrowd(w *watcher, n, window int) *crowd {
	c := &crowd{
		w: w, peers: peers(n), next: make([]uint64, n), open: make([]int, n), window: window,
		parked: map[uint64]bool{}, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	inner := w.onAnswer
	w.onAnswer = func(d Downlink) {
		if inner != nil {
			inner(d)
		}
		c.mu.Lock()
		c.open[d.ConnID-1]--
		c.mu.Unlock()
		signal(c.wake)
	}
	return c
}

func (c *crowd) room(conns []uint64) {
	c.mu.Lock()
	for _, id := range conns {
		delete(c.parked, id)
	}
	c.mu.Unlock()
	signal(c.wake)
}

// run submits until end is called.
func (c *crowd) run(r Relay) {
	c.relay = r
	go func() {
		defer close(c.done)
		for {
			c.round()
			select {
			case <-c.stop:
				return
			case <-c.wake:
			}
		}
	}()
	signal(c.wake)
}

func (c *crowd) round() {
	c.mu.Lock()
	var us []Uplink
	for i, p := range c.peers {
		if c.parked[p.ConnID] {
			continue
		}
		for c.open[i] < c.window {
			c.open[i]++
			c.next[i]++
			u := frame(p, c.next[i])
			if c.next[i] == 1 {
				u.Kind, u.Payload = KindConnect, nil
			}
			us = append(us, u)
		}
	}
	c.mu.Unlock()
	if len(us) == 0 {
		return
	}
	taken := c.w.submit(c.relay, us)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(us) - 1; i >= 0; i-- {
		if !taken[i] {
			n := us[i].Peer.ConnID - 1
			c.open[n]--
			c.next[n]--
			c.parked[us[i].Peer.ConnID] = true
		}
	}
}

// end stops submitting and waits until everything was answered.
func (c *crowd) end(t testing.TB) {
	t.Helper()
	close(c.stop)
	<-c.done
	eventually(t, "everything answered", func() bool { return c.w.open() == 0 })
}
