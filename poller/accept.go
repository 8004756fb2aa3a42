package poller

import (
	"crypto/tls"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller/internal/gate"
	"github.com/sluice-im/sluice/poller/internal/proxy"
)

// acceptor takes the connections of one listener, on the goroutine of its gate.
type acceptor struct {
	engine *engine
	index  uint8       // of the listener
	tls    *tls.Config // nil on a plain listener
	policy proxy.Policy
}

// Accepted implements gate.Host: it gives the connection a slot and a loop, or refuses it.
func (a *acceptor) Accepted(fd int, remote netip.AddrPort) {
	e, now := a.engine, time.Now()
	stage, served := a.stageFor(remote)
	if !served {
		a.refuse(fd, CauseBadProxyHeader)
		return
	}
	var quota *gate.Quota
	if stage == nil || !stage.before.proxy {
		var ok bool
		if quota, ok = e.limits.Address(a.policy.Counted(remote.Addr()), now); !ok {
			a.refuse(fd, CauseAddressLimit)
			return
		}
	}
	if !e.limits.Rate(now) { // last, or one address over its limit would use up everybody's
		e.limits.Left(quota)
		a.refuse(fd, CauseAcceptRate)
		return
	}
	c := e.slab.Take()
	if c == nil {
		e.limits.Left(quota)
		a.refuse(fd, CauseConnectionLimit)
		return
	}
	l := e.idlest()
	c.mu.Lock()
	c.loop, c.fd, c.quota, c.listener = l, int32(fd), quota, a.index
	c.state, c.mask = stateOpening, disarmed
	id := c.id()
	c.mu.Unlock()
	l.conns.Add(1)
	l.arrive(incoming{id: id, remote: remote, accepted: e.clock.At(now), stage: stage})
}

// refuse closes a connection that Open will not see.
func (a *acceptor) refuse(fd int, cause Cause) {
	a.engine.refused[cause].Add(1) // first, so that whoever sees the end finds it counted
	_ = unix.Close(fd)
}

// Shed implements gate.Host.
func (a *acceptor) Shed() { a.engine.refused[CauseConnectionLimit].Add(1) }

// Paused implements gate.Host.
func (a *acceptor) Paused() { a.engine.acceptPaused.Add(1) }

// idlest is the loop with the fewest connections.
func (e *engine) idlest() *loop {
	best := e.all[0]
	for _, l := range e.all[1:] {
		if l.conns.Load() < best.conns.Load() {
			best = l
		}
	}
	return best
}
