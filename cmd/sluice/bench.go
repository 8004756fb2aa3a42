package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sluice-im/sluice/bench"
	"github.com/sluice-im/sluice/bench/load"
	"github.com/sluice-im/sluice/cmd/internal/program"
)

type benchCmd struct {
	Relay benchRelayCmd `cmd:"" help:"CPU time of a relayed and acknowledged message, against a bare epoll echo."`
	Echo  benchEchoCmd  `cmd:"" help:"CPU time of an echo through the engine, against a bare epoll echo."`
	Idle  benchIdleCmd  `cmd:"" help:"Memory and goroutines of idle connections."`
}

// benchFlags are those of every scenario.
type benchFlags struct {
	Transport string `help:"What clients speak." enum:"ws,tcp" default:"ws"`
	Engine    string `help:"Engine of the gateway." enum:"oneshot,netpoll" default:"oneshot"`
	Seconds   int    `help:"Length of a round." default:"5"`
	Rounds    int    `help:"Rounds of each figure; the median is reported." default:"3"`
	Size      int    `help:"Bytes of content in a message." default:"64"`
	JSON      string `help:"Write the figures to a file as well." placeholder:"FILE"`
}

func (f *benchFlags) options() (bench.Options, error) {
	if f.Seconds < 1 || f.Rounds < 1 || f.Size < 0 || f.Size > 32<<10 {
		return bench.Options{}, fmt.Errorf("%w: --seconds and --rounds must be at least 1, --size 0 to 32768", program.ErrUsage)
	}
	return bench.Options{Transport: load.Transport(f.Transport), Engine: f.Engine, Seconds: f.Seconds, Rounds: f.Rounds, Size: f.Size,
		Mode: "stream", JSON: f.JSON, Out: os.Stdout}, nil
}

type benchRelayCmd struct {
	benchFlags
	Conns    int    `help:"Client connections." default:"1000"`
	InFlight int    `help:"Messages in flight on each." name:"inflight" default:"1"`
	Mode     string `help:"Relay mode." enum:"stream,unary" default:"stream"`
	Rate     int    `help:"Messages a second over all connections, open loop; 0 = closed loop."`
}

func (c *benchRelayCmd) Run(ctx context.Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	o.Conns, o.InFlight, o.Mode, o.Rate = c.Conns, c.InFlight, c.Mode, c.Rate
	_, err = bench.Relay(ctx, o)
	return err
}

type benchEchoCmd struct {
	benchFlags
	Conns    int `help:"Client connections." default:"1000"`
	InFlight int `help:"Messages in flight on each." name:"inflight" default:"1"`
}

func (c *benchEchoCmd) Run(ctx context.Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	o.Conns, o.InFlight = c.Conns, c.InFlight
	_, err = bench.Echo(ctx, o)
	return err
}

type benchIdleCmd struct {
	benchFlags
	Conns []int `help:"Numbers of connections, growing." default:"5000,10000,15000"`
}

func (c *benchIdleCmd) Run(ctx context.Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	for i, n := range c.Conns {
		if n < 1 || i > 0 && n <= c.Conns[i-1] {
			return fmt.Errorf("%w: --conns: %v is not allowed here; allowed: positive numbers, each larger than the one before", program.ErrUsage, c.Conns)
		}
	}
	_, err = bench.Idle(ctx, o, c.Conns)
	return err
}
