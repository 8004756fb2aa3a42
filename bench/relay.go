package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-im/sluice/bench/bare"
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
