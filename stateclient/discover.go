package stateclient

import (
	"context"
	"net"
	"slices"
	"time"
)

const (
	// lookupEvery is how soon a new backend is found: gRPC's own resolver looks again only when a connection failed.
	lookupEvery = 5 * time.Second
	// lookupMax bounds one look-up.
	lookupMax = 3 * time.Second
	// lookupRetry is the pause after a look-up that failed while nothing was ever found.
	lookupRetry = 500 * time.Millisecond
)

// discover looks the targets up for as long as the relay lives. A look-up that fails or finds nothing changes nothing:
// the backends known so far are a better guess than none.
func (r *relay) discover(t targets) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	well := true
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-timer.C:
		}
		ctx, cancel := context.WithTimeout(r.ctx, lookupMax)
		hosts, err := r.lookup(ctx, t.host)
		cancel()
		if err != nil || len(hosts) == 0 {
			if well {
				r.log.Warn("look-up of backends failed", "host", t.host, "error", err)
			}
			well = false
		} else {
			well = true
			addrs := make([]string, 0, len(hosts))
			for _, h := range hosts {
				addrs = append(addrs, net.JoinHostPort(h, t.port))
			}
			r.adopt(addrs)
		}
		if len(r.known()) == 0 {
			timer.Reset(lookupRetry)
		} else {
			timer.Reset(lookupEvery)
		}
	}
}

// adopt makes addrs the backends: it starts those that are new and retires those that are gone.
func (r *relay) adopt(addrs []string) {
	slices.Sort(addrs)
	addrs = slices.Compact(addrs)
	if len(addrs) > backendsMax {
		r.log.Error("too many backends, the rest is not used", "found", len(addrs), "used", backendsMax)
		addrs = addrs[:backendsMax]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	var stay, gone []*backend
	for _, b := range r.backends {
		if slices.Contains(addrs, b.addr) {
			stay = append(stay, b)
		} else {
			gone = append(gone, b)
		}
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(stay, func(b *backend) bool { return b.addr == a }) {
			b := newBackend(r, a)
			stay = append(stay, b)
			for _, l := range b.lanes {
				r.start(l)
			}
			r.log.Info("backend added", "backend", a)
		}
	}
	if len(stay) == len(r.backends) && len(gone) == 0 {
		return
	}
	r.backends = stay
	r.publish()
	for _, b := range gone {
		r.log.Info("backend removed", "backend", b.addr)
		r.retire(b)
	}
}

// retire lets the lanes of a backend that left the view end once they are empty.
func (r *relay) retire(b *backend) {
	b.member.Store(false)
	for _, l := range b.lanes {
		l.mu.Lock()
		l.retiring = true
		l.mu.Unlock()
		signal(l.wake)
	}
}

// rehome moves what a lane has not sent to the lanes that its connections belong to now. It is called when nothing that
// was sent is unanswered: every connection is at zero then, and its whole chain moves. Uplinks for which there is no
// better or no free lane stay until their deadline. Only the lane's driver calls it.
func (r *relay) rehome(l *lane) {
	l.deliver.Lock() // No answer is on its way to the sink while a connection changes lanes.
	defer l.deliver.Unlock()
	v, now := r.view.Load(), r.now()
	for {
		l.mu.Lock()
		i := l.queue.head
		if i == 0 {
			l.mu.Unlock()
			return
		}
		p := l.slab.items[i].uplink.Peer
		l.mu.Unlock()
		to := v.route(p)
		if to == l || to == v.limbo || !l.moveTo(to, p, v.version, now) {
			return
		}
		signal(to.wake)
	}
}

// moveTo moves the connection's chain, all of it or nothing.
func (l *lane) moveTo(to *lane, p *Peer, version uint32, now int64) bool {
	first, second := l, to
	if to.number < l.number {
		first, second = to, l
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	second.mu.Lock()
	defer second.mu.Unlock()
	f := &p.flight
	n, bytes := 0, 0
	for i := f.head; i != 0; i = l.slab.items[i].chain {
		if l.slab.items[i].where == inSent {
			return false
		}
		n++
		bytes += len(l.slab.items[i].uplink.Payload)
	}
	if to.closed || to.held+n > to.queueMax || to.heldBytes+bytes > to.bytesMax {
		return false
	}
	i := f.head
	f.head, f.tail = 0, 0
	l.conns.remove(p)
	for i != 0 {
		it := l.slab.items[i]
		l.detach(i)
		l.slab.give(i)
		to.accept(&it.uplink, it.deadline, now)
		i = it.chain
	}
	f.version, f.waiting = version, false
	f.lane.Store(to)
	return true
}
