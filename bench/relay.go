package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-im/sluice/bench/bare"
	"github.com/sluice-im/sluice/bench/load"
)

// Relay measures a relayed and acknowledged message in each of the modes: client, gateway, logic tier and back, against a
// bare epoll echo of as many bytes. The logic tier does nothing; limits, timers, metrics and routes are on.
func Relay(ctx context.Context, o Options, modes []string) (*Report, error) {
	r := &Report{Machine: machine(),
		Scenario: fmt.Sprintf("relay: %d connections x %d in flight, %s, mode %s, engine %s, %d bytes, %d rounds of %d s, rate %d",
			o.Conns, o.InFlight, o.Transport, strings.Join(modes, " and "), o.Engine, o.Size, o.Rounds, o.Seconds, o.Rate)}
	var subjects []*subject
	for _, mode := range []bare.Mode{bare.LevelTriggered, bare.OneShot} {
		s, stop, err := startBare(ctx, o, mode)
		if err != nil {
			return nil, err
		}
		defer stop()
		subjects = append(subjects, s)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	relays, before := len(subjects), []batches{}
	for _, mode := range modes {
		for _, binary := range builds(self, o.Against) {
			one := o
			one.Mode = mode
			sys, err := startSystemOf(ctx, binary, one)
			if err != nil {
				return nil, err
			}
			defer sys.stop()
			l, err := startLoad(ctx, one, o.Transport, addrOf(sys.gateway, o.Transport))
			if err != nil {
				return nil, err
			}
			defer l.Stop()
			b, err := batchesOf(ctx, sys.gateway)
			if err != nil {
				return nil, err
			}
			before = append(before, b)
			subjects = append(subjects, &subject{name: "relay, " + mode + of(binary, self), server: sys.gateway, load: l})
		}
	}
	if r.Figures, err = measure(ctx, o, subjects); err != nil {
		return nil, err
	}
	for i, s := range subjects[relays:] {
		if err := addBatch(ctx, s.server, before[i], &r.Figures[relays+i]); err != nil {
			return nil, err
		}
	}
	last := subjects[len(subjects)-1]
	if err := profile(ctx, o, last.server, func(d time.Duration) error { _, err := last.run(ctx, d); return err }); err != nil {
		return nil, err
	}
	return r, r.print(o)
}

// builds are the programs that are measured.
func builds(self, against string) []string {
	if against == "" {
		return []string{self}
	}
	return []string{against, self}
}

func of(binary, self string) string {
	if binary == self {
		return ""
	}
	return " of " + filepath.Base(binary)
}

// Echo measures the connection layer alone: messages come back as they were, through the engines, with their timers and
// outboxes but no framing.
func Echo(ctx context.Context, o Options, engines []string) (*Report, error) {
	server, _ := cores()
	r := &Report{Machine: machine(), Scenario: fmt.Sprintf("echo: %d connections x %d in flight, engine %s, %d bytes, %d rounds of %d s",
		o.Conns, o.InFlight, strings.Join(engines, " and "), o.Size, o.Rounds, o.Seconds)}
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
