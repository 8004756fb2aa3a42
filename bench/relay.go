package bench

import (
	"context"
	"fmt"

	"github.com/sluice-im/sluice/bench/bare"
	"github.com/sluice-im/sluice/bench/load"
)

// Relay measures a relayed and acknowledged message: client, gateway, logic tier and back, against a bare epoll echo of
// as many bytes. The logic tier does nothing; limits, timers, metrics and routes are on.
func Relay(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Machine: machine(),
		Scenario: fmt.Sprintf("relay: %d connections x %d in flight, %s, mode %s, engine %s, %d bytes, %d rounds of %d s, rate %d",
			o.Conns, o.InFlight, o.Transport, o.Mode, o.Engine, o.Size, o.Rounds, o.Seconds, o.Rate)}

	sys, err := startSystem(ctx, o)
	if err != nil {
		return nil, err
	}
	defer sys.stop()
	gw := sys.gateway
	gwLoad, err := startLoad(ctx, o, o.Transport, addrOf(gw, o.Transport))
	if err != nil {
		return nil, err
	}
	defer gwLoad.Stop()

	subjects := []*subject{}
	for _, mode := range []bare.Mode{bare.LevelTriggered, bare.OneShot} {
		s, stop, err := startBare(ctx, o, mode)
		if err != nil {
			return nil, err
		}
		defer stop()
		subjects = append(subjects, s)
	}
	subjects = append(subjects, &subject{"gateway relay", gw, gwLoad})
	if r.Figures, err = measure(ctx, o, subjects); err != nil {
		return nil, err
	}
	if err := addBatch(ctx, gw, &r.Figures[len(r.Figures)-1]); err != nil {
		return nil, err
	}
	return r, r.print(o)
}

// Echo measures the connection layer alone: messages come back as they were, through framing, limits and timers.
func Echo(ctx context.Context, o Options) (*Report, error) {
	server, _ := cores()
	r := &Report{Machine: machine(), Scenario: fmt.Sprintf("echo: %d connections x %d in flight, %s, engine %s, %d bytes, %d rounds of %d s",
		o.Conns, o.InFlight, o.Transport, o.Engine, o.Size, o.Rounds, o.Seconds)}
	gw, err := StartProcess(ctx, "poller", server, "bench-child", "poller", "--engine", o.Engine)
	if err != nil {
		return nil, err
	}
	defer gw.Stop()
	l, err := startLoad(ctx, o, load.Raw, gw.Addr)
	if err != nil {
		return nil, err
	}
	defer l.Stop()
	base, stop, err := startBare(ctx, o, bare.LevelTriggered)
	if err != nil {
		return nil, err
	}
	defer stop()
	if r.Figures, err = measure(ctx, o, []*subject{base, {"engine " + o.Engine, gw, l}}); err != nil {
		return nil, err
	}
	return r, r.print(o)
}

func startBare(ctx context.Context, o Options, mode bare.Mode) (*subject, func(), error) {
	server, _ := cores()
	echo, err := StartProcess(ctx, "bare", server, "bench-child", "bare", "--mode", string(mode))
	if err != nil {
		return nil, nil, err
	}
	l, err := startLoad(ctx, o, load.Raw, echo.Addr)
	if err != nil {
		echo.Stop()
		return nil, nil, err
	}
	return &subject{"bare echo, " + string(mode), echo, l}, func() { l.Stop(); echo.Stop() }, nil
}
