package gateway

import (
	"sync"
	"time"

	"github.com/sluice-im/sluice/poller"
)

const (
	// pacerTick is the grain of what happens outside of a lease: the RETRYs held back, park_max, the end of a leave.
	pacerTick = 50 * time.Millisecond
	// pacerSlots times pacerTick is more than retryMax and leaveMax; a longer wait goes round again.
	pacerSlots = 32
)

// pacer is a wheel of connections that have to be looked at soon, whatever state their lease is in. Its size is bounded
// by what is in flight: an entry is added for an uplink, a refusal or a leave.
type pacer struct {
	clock func() time.Duration
	wake  chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	slots [pacerSlots][]poller.ID
	tick  int64 // the last tick that was taken
	size  int
}

func newPacer(clock func() time.Duration) *pacer {
	return &pacer{clock: clock, wake: make(chan struct{}, 1)}
}

// add looks at id after wait, or after the wheel's turn if that is sooner.
func (c *pacer) add(id poller.ID, wait time.Duration) {
	now := c.clock()
	c.mu.Lock()
	if c.size == 0 {
		c.tick = int64(now / pacerTick)
	}
	at := int64((now + wait + pacerTick - 1) / pacerTick)
	at = max(c.tick+1, min(at, c.tick+pacerSlots-1))
	c.slots[at%pacerSlots] = append(c.slots[at%pacerSlots], id)
	c.size++
	first := c.size == 1
	c.mu.Unlock()
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// take removes what is due.
func (c *pacer) take(ids []poller.ID) (due []poller.ID, left int) {
	now := int64(c.clock() / pacerTick)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.size > 0 && c.tick < now {
		c.tick++
		slot := &c.slots[c.tick%pacerSlots]
		ids = append(ids, *slot...)
		c.size -= len(*slot)
		*slot = (*slot)[:0]
	}
	return ids, c.size
}

// run looks at connections when their time has come, until stop is closed. It sleeps while there are none.
func (c *pacer) run(stop <-chan struct{}, due func(ids []poller.ID)) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var ids []poller.ID
	for {
		var left int
		if ids, left = c.take(ids[:0]); len(ids) > 0 {
			due(ids)
			continue
		}
		if left > 0 {
			timer.Reset(pacerTick)
		}
		select {
		case <-stop:
			return
		case <-c.wake:
		case <-timer.C:
		}
	}
}
