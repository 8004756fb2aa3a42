package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-im/sluice/bench/bare"
	"github.com/sluice-im/sluice/bench/load"
)

// goneMax bounds how long a server may take to notice that a fleet has left.
const goneMax = 30 * time.Second

// Connect measures logins: accept, upgrade, token, route, and the announcement to the logic tier, with many clients on
// their way at once. The bare line is a bare epoll loop that only accepts.
func Connect(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Machine: machine(), Scenario: fmt.Sprintf("connect: %d logins, %d at once, %s, engine %s, %d rounds, rate %d",
		o.Conns, o.Dialers, o.Transport, o.Engine, o.Rounds, o.DialRate)}
	server, _ := cores()
	accept, err := StartProcess(ctx, "bare", server, "bench-child", "bare", "--mode", string(bare.LevelTriggered))
	if err != nil {
		return nil, err
	}
	defer accept.Stop()
	sys, err := startSystem(ctx, o)
	if err != nil {
		return nil, err
	}
	defer sys.stop()

	o.InFlight = 0
	callers := []*caller{
		{name: "bare accept", server: accept, transport: load.Raw, addr: accept.Addr},
		{name: "gateway login", server: sys.gateway, transport: o.Transport, addr: addrOf(sys.gateway, o.Transport), metered: true},
	}
	for i := range o.Rounds + 1 {
		for _, c := range callers {
			us, dialed, err := c.round(ctx, o)
			if err != nil {
				return nil, err
			}
			if i == 0 {
				continue // the first round warms up
			}
			c.micros, c.last = append(c.micros, us), dialed
		}
	}
	for _, c := range callers {
		slices.Sort(c.micros)
		m := c.micros[len(c.micros)/2]
		r.Figures = append(r.Figures, Figure{
			Name: c.name, MicrosPerMessage: m, Spread: (c.micros[len(c.micros)-1] - c.micros[0]) / m,
			Load:  load.Result{Messages: uint64(c.last.Clients), Elapsed: c.last.Elapsed, P50: c.last.P50, P99: c.last.P99},
			Extra: map[string]float64{"refusals (503) in the last round": float64(c.last.Refused)},
		})
	}
	err = profile(ctx, o, sys.gateway, func(d time.Duration) error {
		for until := time.Now().Add(d); time.Now().Before(until); {
			if _, _, err := callers[1].round(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.Notes = append(r.Notes, "a message is a login here; Redis and the logic tier run in processes of their own and are not counted")
	return r, r.print(o)
}

// caller is a server that clients come to.
type caller struct {
	name      string
	server    *Process
	transport load.Transport
	addr      string
	// metered: the server says in its metrics how many connections it has.
	metered bool
	micros  []float64
	last    load.DialTime
}

// round lets o.Conns clients in, and then out again; only the way in is measured.
func (c *caller) round(ctx context.Context, o Options) (micros float64, d load.DialTime, err error) {
	before, err := c.server.CPU()
	if err != nil {
		return 0, d, err
	}
	l, err := startLoad(ctx, o, c.transport, c.addr)
	if err != nil {
		return 0, d, err
	}
	after, err := c.server.CPU()
	l.Stop()
	if err != nil {
		return 0, d, err
	}
	if err := json.Unmarshal([]byte(l.Addr), &d); err != nil {
		return 0, d, fmt.Errorf("load of %s: %q: %w", c.name, l.Addr, err)
	}
	return float64(after-before) / float64(time.Microsecond) / float64(o.Conns), d, c.empty(ctx)
}

// empty waits until the server has noticed that everybody has gone, so that the next round does not pay for it.
func (c *caller) empty(ctx context.Context) error {
	for until := time.Now().Add(goneMax); c.metered; time.Sleep(settle) {
		m, err := metrics(ctx, c.server)
		if err != nil {
			return err
		}
		if m["sluice_connections"] == 0 {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s still has connections after %v", c.name, goneMax)
		}
	}
	return nil
}
