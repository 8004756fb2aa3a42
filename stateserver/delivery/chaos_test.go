package delivery

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
)

var chaosSeed = flag.Uint64("chaos.seed", 0, "seed of the random faults; 0 = another one each time")

// chaos throws faults at two nodes, two gateways and what is around them.
type chaos struct {
	*world
	random   *rand.Rand
	nodes    []*node
	gateways []*gateway
	users    []string
	conn     uint64

	mu sync.Mutex
	// Guarded by mu: asked from the gateways' goroutines.
	dice *rand.Rand
	calm bool
	// got is what each user's client holds, of what it has seen.
	got map[string]map[int64]bool
}

func newChaos(t *testing.T, seed uint64, redisTimeout time.Duration) *chaos {
	c := &chaos{world: newWorld(t), random: rand.New(rand.NewPCG(seed, 1)), dice: rand.New(rand.NewPCG(seed, 2)), users: uids(30), got: map[string]map[int64]bool{}}
	cfg := fastConfig()
	cfg.Resend.PerUIDMax = 20
	cfg.RedisTimeout = redisTimeout
	c.nodes = []*node{c.node(cfg), c.node(cfg)}
	for range 2 {
		g := newGateway(t)
		g.result = c.result
		g.arrived = c.arrived
		c.gateways = append(c.gateways, g)
	}
	for _, uid := range c.users {
		c.move(uid, "phone")
	}
	return c
}

func (c *chaos) roll(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calm {
		return n - 1
	}
	return c.dice.IntN(n)
}

// result makes one push in four fail in some way.
func (c *chaos) result(*gatewayv1.Target) gatewayv1.Result {
	switch c.roll(16) {
	case 0:
		return gatewayv1.Result_RESULT_STALE_ROUTE
	case 1:
		return gatewayv1.Result_RESULT_DROPPED_SLOW
	case 2:
		return gatewayv1.Result_RESULT_DRAINING
	case 3:
		return gatewayv1.Result_RESULT_UNSPECIFIED
	}
	return gatewayv1.Result_RESULT_WRITTEN
}

// arrived is a client: one ack in three is lost; acks go to either node.
func (c *chaos) arrived(a arrival) {
	uid, seq := a.target.GetUid(), a.down.GetSeq()
	c.mu.Lock()
	if c.got[uid] == nil {
		c.got[uid] = map[int64]bool{}
	}
	c.got[uid][seq] = true
	c.mu.Unlock()
	if c.roll(3) == 0 {
		return
	}
	n := c.nodes[c.roll(len(c.nodes))]
	_, _ = n.Acked(context.Background(), uid, a.target.GetDeviceId(), a.down.GetConvId(), seq) // a lost answer is one of the faults
}

// move connects a device to some gateway.
func (c *chaos) move(uid, device string) {
	c.conn++
	c.connect(c.gateways[c.random.IntN(len(c.gateways))].route(uid, device, c.conn))
}

func (c *chaos) step(seq int64) {
	uid := c.users[c.random.IntN(len(c.users))]
	switch c.random.IntN(12) {
	case 0:
		c.move(uid, "phone")
	case 1:
		c.move(uid, "tablet")
	case 2:
		c.disconnect(uid, "phone")
	case 3:
		c.failFind(errBroken)
	case 4, 5:
		c.failFind(nil)
	case 6:
		c.failLoad(errBroken)
	case 7, 8:
		c.failLoad(nil)
	}
	n := c.nodes[c.random.IntN(len(c.nodes))]
	n.send(to(seq, uid, seq))
	if seq%10 == 0 {
		// Faults are to meet messages on their way, not a queue.
		eventually(c.t, "lanes keep up", func() bool {
			return !slices.ContainsFunc(n.lanes, func(q *queue[*job]) bool { return q.len() > 0 })
		})
	}
}

// heal ends all faults and waits until nothing is owed any more.
func (c *chaos) heal() {
	c.mu.Lock()
	c.calm = true
	c.mu.Unlock()
	c.failFind(nil)
	c.failLoad(nil)
	eventually(c.t, "resend table drained", func() bool { return c.pending() == 0 })
	for i, n := range c.nodes {
		eventually(c.t, fmt.Sprintf("node %d settled", i), func() bool { return n.Delivery.marks.lag(time.Now()) == 0 && n.retries.len() == 0 })
	}
}

func seedOf(t *testing.T) uint64 {
	seed := *chaosSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed: -args -chaos.seed=%d", seed)
	return seed
}

func TestConservationUnderRandomFaults(t *testing.T) {
	c := newChaos(t, seedOf(t), waitMax)
	for seq := int64(1); seq <= 1500; seq++ {
		c.step(seq)
	}
	c.heal()
	c.checkConserved(c.nodes...)
	if lost := c.nodes[0].pairs(pairLost) + c.nodes[1].pairs(pairLost); lost != 0 {
		t.Errorf("%d pairs lost with a redis that was always there", lost)
	}
	if c.nodes[0].pairs(pairAcked)+c.nodes[1].pairs(pairAcked) == 0 {
		t.Error("nothing was acked")
	}
}

func TestConservationWhenRedisFails(t *testing.T) {
	c := newChaos(t, seedOf(t), 500*time.Millisecond)
	last := func(d time.Duration) {
		since := time.Now()
		eventually(t, "the fault is over", func() bool { return time.Since(since) > d })
	}
	fault := func(seq int64) {
		switch seq {
		case 200, 1200:
			if err := c.rdb.FlushAll(context.Background()).Err(); err != nil {
				t.Fatal(err)
			}
		case 600:
			c.redis.Kill()
			c.redis.Start()
		case 100, 400, 500, 800, 1000:
			c.redis.Signal(syscall.SIGSTOP)
			last(700 * time.Millisecond) // longer than a round trip may take
			c.redis.Signal(syscall.SIGCONT)
		case 199, 599, 1199:
			last(2 * leaseEvery) // the nodes know the Redis that is about to go
		}
	}
	for seq := int64(1); seq <= 1500; seq++ {
		fault(seq)
		c.step(seq)
	}
	c.heal()
	c.checkConserved(c.nodes...)
	for i, n := range c.nodes {
		if n.lostCount() == 0 {
			t.Errorf("node %d did not report the loss", i)
		}
	}
}
