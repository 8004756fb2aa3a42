package stateclient

// settle ends the first uplink of a chain, and those behind it whose answers came early. deliver and mu are held.
func (l *lane) settle(i int32, a answer) {
	f := &l.slab.items[i].uplink.Peer.flight
	l.finish(i, a)
	for f.head != 0 && l.slab.items[f.head].early != nil {
		early := *l.slab.items[f.head].early
		l.earlyBytes -= len(early.payload)
		l.finish(f.head, early)
	}
}

func (l *lane) finish(i int32, a answer) {
	it := &l.slab.items[i]
	u := &it.uplink
	l.out = append(l.out, Downlink{
		ConnID: u.Peer.ConnID, Seq: u.Seq, Kind: u.Kind,
		Outcome: a.outcome, Payload: a.payload, RetryAfter: a.retryAfter, Detail: a.detail,
	})
	l.outItems = append(l.outItems, outItem{peer: u.Peer, sentAt: it.sentAt})
	l.unlink(i)
	l.slab.give(i)
}

// give hands what was settled to the sink. deliver is held, mu is not.
func (l *lane) give() {
	if len(l.out) == 0 {
		return
	}
	l.relay.sink.Answers(l.out)
	now := l.relay.now()
	l.mu.Lock()
	for _, o := range l.outItems {
		o.peer.flight.pending--
		if o.sentAt != 0 {
			l.latency.observe(now - o.sentAt)
		}
	}
	if len(l.waiting) > 0 && l.roomy() {
		signal(l.kick)
	}
	if (l.retiring || l.draining) && l.sent.head == 0 {
		signal(l.wake)
	}
	l.mu.Unlock()
	clear(l.out)
	clear(l.outItems)
	l.out, l.outItems = l.out[:0], l.outItems[:0]
}

// settleSent answers Broken to everything that was sent. Nothing is being sent meanwhile.
func (l *lane) settleSent(detail string) {
	l.deliver.Lock()
	defer l.deliver.Unlock()
	l.settleWhile(func() bool {
		i := l.sent.head
		if i == 0 {
			return false
		}
		// What stands before a sent uplink and was not sent has expired, and waits for the wheel.
		if h := l.headOf(i); l.slab.items[h].where == inSent {
			l.settle(h, answer{outcome: Broken, detail: detail})
		} else {
			l.settle(h, answer{outcome: NoBackend})
		}
		return true
	})
}

// settleQueue answers NoBackend to everything that was not sent; behind an uplink that is in flight, the answer waits
// for its turn.
func (l *lane) settleQueue(detail string) {
	l.deliver.Lock()
	defer l.deliver.Unlock()
	none := answer{outcome: NoBackend, detail: detail}
	l.settleWhile(func() bool {
		i := l.queue.head
		switch {
		case i == 0:
			return false
		case l.headOf(i) == i:
			l.settle(i, none)
		default:
			l.leave(i)
			l.slab.items[i].early = &none
		}
		return true
	})
}

// settleWhile calls step, which ends one uplink, until it says that there is none left. deliver is held, and mu while
// step runs.
func (l *lane) settleWhile(step func() bool) {
	for more := true; more; {
		l.mu.Lock()
		for more = step(); more && len(l.out) < deliverMax; {
			more = step()
		}
		l.mu.Unlock()
		l.give()
	}
}

// headOf is the first uplink of the chain that i is on.
func (l *lane) headOf(i int32) int32 { return l.slab.items[i].uplink.Peer.flight.head }

// expire ends what is due at now: TimedOut what was sent, NoBackend what was not. Deadlines do not decrease along a
// chain, so whatever stands before a due item is due as well, and goes first.
func (l *lane) expire(now int64) {
	l.deliver.Lock()
	defer l.deliver.Unlock()
	sent := 0
	l.settleWhile(func() bool {
		i := l.wheel.due(&l.slab, now)
		if i == 0 {
			return false
		}
		h := l.headOf(i)
		switch it := &l.slab.items[h]; {
		case it.encoding:
			l.wheel.postpone(&l.slab, i, now)
		case it.where == inSent:
			sent++
			l.settle(h, answer{outcome: TimedOut})
		default:
			l.settle(h, answer{outcome: NoBackend})
		}
		return true
	})
	l.backend.failed(sent)
}

// take ends the uplink that an answer names and says so, or counts the answer as late or stray. deliver and mu are held.
func (l *lane) take(conn, seq uint64, a answer) bool {
	m := l.relay.metrics
	p := l.conns.find(conn)
	if p == nil {
		m.late.Inc()
		return false
	}
	f := &p.flight
	i := f.head
	for i != 0 && l.slab.items[i].uplink.Seq < seq {
		i = l.slab.items[i].chain
	}
	if i == 0 {
		m.foreign.Inc()
		return false
	}
	switch it := &l.slab.items[i]; {
	case it.uplink.Seq != seq && i == f.head:
		m.late.Inc()
		return false
	case it.uplink.Seq != seq, it.where != inSent, it.encoding:
		m.foreign.Inc()
		return false
	}
	for !l.serial && f.head != i && l.slab.items[f.head].where == nowhere {
		l.settle(f.head, answer{outcome: NoBackend}) // Expired before it was sent, and waits for the wheel.
	}
	if i == f.head {
		l.settle(i, a)
	} else {
		l.hold(&l.slab.items[i], a)
	}
	return true
}

// earlyBytesMax bounds the payloads of answers that came too early, per lane. Only a backend that breaks the contract
// makes any; beyond it they are dropped, and their uplinks time out.
const earlyBytesMax = 1 << 20

func (l *lane) hold(it *item, a answer) {
	switch {
	case it.early != nil:
		l.relay.metrics.twice.Inc()
	case l.earlyBytes+len(a.payload) > earlyBytesMax:
		l.relay.metrics.disorder.Inc()
	default:
		l.relay.metrics.disorder.Inc()
		a.payload = append([]byte(nil), a.payload...)
		it.early = &a
		l.earlyBytes += len(a.payload)
	}
}

// mind runs the lane's clock until the lane has closed: deadlines, the driver's tick, and room for those who wait.
func (l *lane) mind(timer *timer) {
	for {
		now := l.relay.now()
		l.expire(now)
		next := l.driver.tick(now)
		next = min(next, l.offerRoom(now))
		l.mu.Lock()
		next = min(next, l.wheel.next())
		l.armed = next
		ended := l.ended && len(l.waiting) == 0
		l.mu.Unlock()
		if ended {
			return
		}
		if next == never {
			<-l.kick
			continue
		}
		timer.wait(next-l.relay.now(), l.kick)
	}
}
