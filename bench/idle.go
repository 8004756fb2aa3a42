package bench

import (
	"context"
	"fmt"
	"time"
)

// settle is how often the memory is looked at until it stands still.
const settle = 300 * time.Millisecond

// Idle measures what a logged-in connection costs while it does nothing: the slope of the gateway's proportional set size
// over the numbers of connections, and the number of goroutines, which must not grow with them.
func Idle(ctx context.Context, o Options, steps []int) (*Report, error) {
	r := &Report{Machine: machine(), Scenario: fmt.Sprintf("idle: %v connections, %s, engine %s", steps, o.Transport, o.Engine)}
	sys, err := startSystem(ctx, o)
	if err != nil {
		return nil, err
	}
	defer sys.stop()
	gw := sys.gateway

	type point struct{ conns, pss, goroutines, heap, cpu float64 }
	var points []point
	have := 0
	for _, n := range steps {
		more := o
		more.First, more.Conns, more.InFlight = have, n-have, 1
		before, err := gw.CPU()
		if err != nil {
			return nil, err
		}
		l, err := startLoad(ctx, more, o.Transport, addrOf(gw, o.Transport))
		if err != nil {
			return nil, err
		}
		defer l.Stop()
		after, err := gw.CPU()
		if err != nil {
			return nil, err
		}
		pss, err := settled(ctx, gw)
		if err != nil {
			return nil, err
		}
		m, err := metrics(ctx, gw)
		if err != nil {
			return nil, err
		}
		points = append(points, point{float64(n), float64(pss), m["go_goroutines"], m["go_memstats_heap_inuse_bytes"],
			float64(after-before) / float64(time.Microsecond) / float64(n-have)})
		have = n
	}
	_, _ = fmt.Fprintf(o.Out, "%12s %14s %16s %12s %16s\n", "connections", "PSS bytes", "heap in use", "goroutines", "CPU us a login")
	for _, p := range points {
		_, _ = fmt.Fprintf(o.Out, "%12.0f %14.0f %16.0f %12.0f %16.1f\n", p.conns, p.pss, p.heap, p.goroutines, p.cpu)
	}
	first, last := points[0], points[len(points)-1]
	if last.conns > first.conns {
		r.Notes = append(r.Notes,
			fmt.Sprintf("slope: %.0f bytes PSS a connection, %.0f bytes heap in use", (last.pss-first.pss)/(last.conns-first.conns), (last.heap-first.heap)/(last.conns-first.conns)),
			fmt.Sprintf("goroutines: %+.0f from %.0f to %.0f connections", last.goroutines-first.goroutines, first.conns, last.conns))
	}
	return r, r.print(o)
}

// settled collects garbage until the set size stands still and returns it.
func settled(ctx context.Context, gw *Process) (int64, error) {
	last := int64(-1)
	for range 20 {
		// A heap profile with gc=1 collects first; twice, since the first only ends the use of pooled buffers.
		if _, err := fetch(ctx, "http://"+adminOf(gw)+"/debug/pprof/heap?gc=1&debug=1", fetchMax); err != nil {
			return 0, err
		}
		pss, err := gw.PSS()
		if err != nil {
			return 0, err
		}
		if d := pss - last; last >= 0 && d < 64<<10 && d > -(64<<10) {
			return pss, nil
		}
		last = pss
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settle):
		}
	}
	return last, nil
}
