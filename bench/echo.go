package bench

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/sluice-im/sluice/bench/bare"
	"github.com/sluice-im/sluice/bench/load"
)

// Echo measures the connection layer alone: messages come back as they were, through the engines, with their timers and
// outboxes but no framing.
func Echo(ctx context.Context, o Options, engines []string) (*Report, error) {
	server, _ := cores()
	r := &Report{Machine: machine(), Scenario: fmt.Sprintf("echo: %d connections x %d in flight, engine %s, %d bytes, %d rounds of %d s, rate %d",
		o.Conns, o.InFlight, strings.Join(engines, " and "), o.Size, o.Rounds, o.Seconds, o.Rate)}
	base, stop, err := startBare(ctx, o, bare.LevelTriggered)
	if err != nil {
		return nil, err
	}
	defer stop()
	subjects := []*subject{base}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, engine := range engines {
		for _, binary := range builds(self, o.Against) {
			p, err := startBinary(ctx, binary, "poller", server, "bench-child", "poller", "--engine", engine)
			if err != nil {
				return nil, err
			}
			defer p.Stop()
			l, err := startLoad(ctx, o, load.Raw, p.Addr)
			if err != nil {
				return nil, err
			}
			defer l.Stop()
			subjects = append(subjects, &subject{name: "engine " + engine + of(binary, self), server: p, load: l})
		}
	}
	if r.Figures, err = measure(ctx, o, subjects); err != nil {
		return nil, err
	}
	return r, r.print(o)
}

// Loop measures the ways to arrange a loop that bare knows: what there is to choose from before there is an engine.
func Loop(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Machine: machine(), Scenario: fmt.Sprintf("loop: %d connections x %d in flight, %d bytes, %d rounds of %d s, rate %d",
		o.Conns, o.InFlight, o.Size, o.Rounds, o.Seconds, o.Rate)}
	var subjects []*subject
	for _, mode := range bare.Modes {
		s, stop, err := startBare(ctx, o, mode)
		if err != nil {
			return nil, err
		}
		defer stop()
		subjects = append(subjects, s)
	}
	var err error
	if r.Figures, err = measure(ctx, o, subjects); err != nil {
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
	return &subject{name: "bare echo, " + string(mode), server: echo, load: l}, func() { l.Stop(); echo.Stop() }, nil
}
