package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-im/sluice/bench/load"
	"github.com/sluice-im/sluice/bench/logic"
	"github.com/sluice-im/sluice/codec"
)

// Push measures a message that is pushed to a client, through gateway.v1 Push on the internal port with targets that are
// resolved already, against a bare write of the same bytes at the same rate.
func Push(ctx context.Context, o Options, plan logic.Plan) (*Report, error) {
	targets := strconv.Itoa(plan.Targets)
	if plan.Targets == 0 {
		targets = "all"
	}
	r := &Report{Machine: machine(), Scenario: fmt.Sprintf("push: %d connections, %s, engine %s, %s targets a payload, %d payloads a call, %d bytes, %d rounds of %d s, rate %d",
		o.Conns, o.Transport, o.Engine, targets, plan.Items, o.Size, o.Rounds, o.Seconds, plan.Rate)}
	protocol := codec.WebSocket
	if o.Transport == load.TCP {
		protocol = codec.TCP
	}
	frame, err := codec.Append(protocol, nil, logic.Payload(plan.Size))
	if err != nil {
		return nil, err
	}
	o.InFlight, o.Rate, o.FrameBytes = 0, 0, len(frame) // the clients listen

	base, stop, err := startWriter(ctx, o, plan.Rate)
	if err != nil {
		return nil, err
	}
	defer stop()
	sys, err := startSystem(ctx, o, "--push-items", strconv.Itoa(plan.Items), "--push-targets", strconv.Itoa(plan.Targets),
		"--push-rate", strconv.Itoa(plan.Rate), "--size", strconv.Itoa(plan.Size))
	if err != nil {
		return nil, err
	}
	defer sys.stop()
	listen, err := startLoad(ctx, o, o.Transport, addrOf(sys.gateway, o.Transport))
	if err != nil {
		return nil, err
	}
	defer listen.Stop()
	pushed := &subject{name: "gateway push", server: sys.gateway, load: sys.logic, listen: listen}
	if r.Figures, err = measure(ctx, o, []*subject{base, pushed}); err != nil {
		return nil, err
	}
	if err := profile(ctx, o, sys.gateway, func(d time.Duration) error { _, err := pushed.run(ctx, d); return err }); err != nil {
		return nil, err
	}
	return r, r.print(o)
}

// startWriter starts the bare writer and connects its listeners.
func startWriter(ctx context.Context, o Options, rate int) (*subject, func(), error) {
	server, _ := cores()
	w, err := StartProcess(ctx, "writer", server, "bench-child", "writer", "--conns", strconv.Itoa(o.Conns),
		"--bytes", strconv.Itoa(o.FrameBytes), "--rate", strconv.Itoa(rate))
	if err != nil {
		return nil, nil, err
	}
	l, err := startLoad(ctx, o, load.Raw, w.Addr)
	if err != nil {
		w.Stop()
		return nil, nil, err
	}
	return &subject{name: "bare write", server: w, load: w, listen: l}, func() { l.Stop(); w.Stop() }, nil
}
