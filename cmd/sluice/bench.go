package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/sluice-im/sluice/bench"
	"github.com/sluice-im/sluice/bench/load"
	"github.com/sluice-im/sluice/bench/logic"
	"github.com/sluice-im/sluice/cmd/internal/program"
)

type benchCmd struct {
	Relay   benchRelayCmd   `cmd:"" help:"CPU time of a relayed and acknowledged message, against a bare epoll echo."`
	Echo    benchEchoCmd    `cmd:"" help:"CPU time of an echo through the engine, against a bare epoll echo."`
	Loop    benchLoopCmd    `cmd:"" help:"CPU time of a bare epoll echo, arranged in different ways."`
	Push    benchPushCmd    `cmd:"" help:"CPU time of a pushed message, against a bare write of the same bytes."`
	Connect benchConnectCmd `cmd:"" help:"CPU time of a login, against a bare accept."`
	Idle    benchIdleCmd    `cmd:"" help:"Memory and goroutines of idle connections."`
}

// dialers is how many clients log in at once unless told otherwise: enough for claims to gather.
const dialers = 32

// benchFlags are those of every scenario.
type benchFlags struct {
	Seconds int    `help:"Length of a round." default:"5"`
	Rounds  int    `help:"Rounds of each figure; the median is reported." default:"3"`
	Size    int    `help:"Bytes of content in a message." default:"64"`
	JSON    string `help:"Write the figures to a file as well." placeholder:"FILE"`
	Against string `help:"Another build of this program, measured in the same run (relay, echo)." placeholder:"FILE" type:"existingfile"`
}

func (f *benchFlags) options(transport string) (bench.Options, error) {
	if f.Seconds < 1 || f.Rounds < 1 || f.Size < 0 || f.Size > 32<<10 {
		return bench.Options{}, fmt.Errorf("%w: --seconds and --rounds must be at least 1, --size 0 to 32768", program.ErrUsage)
	}
	return bench.Options{Transport: load.Transport(transport), Dialers: dialers, Seconds: f.Seconds, Rounds: f.Rounds, Size: f.Size,
		Mode: "stream", JSON: f.JSON, Against: f.Against, Out: os.Stdout}, nil
}

// talkFlags are those of the scenarios in which clients talk.
type talkFlags struct {
	benchFlags
	Transport string `help:"What clients speak." enum:"ws,tcp" default:"ws"`
	Conns     int    `help:"Client connections." default:"1000"`
}

func (f *talkFlags) options() (bench.Options, error) {
	if f.Conns < 1 {
		return bench.Options{}, fmt.Errorf("%w: --conns must be at least 1", program.ErrUsage)
	}
	o, err := f.benchFlags.options(f.Transport)
	o.Conns = f.Conns
	return o, err
}

// answeredFlags are those of the scenarios in which every message is answered.
type answeredFlags struct {
	talkFlags
	InFlight int `help:"Messages in flight on each." name:"inflight" default:"1"`
	Rate     int `help:"Messages a second over all connections, open loop; 0 = closed loop."`
}

func (f *answeredFlags) options() (bench.Options, error) {
	if f.InFlight < 1 || f.Rate < 0 {
		return bench.Options{}, fmt.Errorf("%w: --inflight must be at least 1, --rate at least 0", program.ErrUsage)
	}
	o, err := f.talkFlags.options()
	o.InFlight, o.Rate = f.InFlight, f.Rate
	return o, err
}

// gatewayFlags are those of the scenarios that measure the whole gateway.
type gatewayFlags struct {
	Engine  string `help:"Engine of the gateway." enum:"oneshot,netpoll" default:"oneshot"`
	Redis   string `help:"Redis to use; an embedded one otherwise." placeholder:"HOST:PORT"`
	Profile string `help:"Write a CPU profile of the gateway, taken in one more round, to a file." placeholder:"FILE"`
}

func (f *gatewayFlags) set(o *bench.Options) {
	o.Engine, o.Redis, o.Profile = f.Engine, f.Redis, f.Profile
}

type benchRelayCmd struct {
	answeredFlags
	gatewayFlags
	Mode []string `help:"Relay modes, each measured in the same run." enum:"stream,unary" default:"stream"`
}

func (c *benchRelayCmd) Run(ctx context.Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	c.set(&o)
	_, err = bench.Relay(ctx, o, c.Mode)
	return err
}

type benchEchoCmd struct {
	answeredFlags
	Engine []string `help:"Engines, each measured in the same run." enum:"oneshot,netpoll" default:"oneshot,netpoll"`
}

func (c *benchEchoCmd) Run(ctx context.Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	_, err = bench.Echo(ctx, o, c.Engine)
	return err
}

type benchLoopCmd struct {
	answeredFlags
}

func (c *benchLoopCmd) Run(ctx context.Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	_, err = bench.Loop(ctx, o)
	return err
}

type benchPushCmd struct {
	talkFlags
	gatewayFlags
	Targets string `help:"Targets of one payload: a number, or all." default:"1"`
	Items   int    `help:"Payloads in one call; 0 = as many as make 64 messages, at least 1."`
	Rate    int    `help:"Messages a second over all targets." default:"20000"`
}

// pushCallMessages is what one call carries by default: a logic tier that delivers sends what has gathered.
const pushCallMessages = 64

func (c *benchPushCmd) Run(ctx context.Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	plan := logic.Plan{Items: c.Items, Rate: c.Rate, Size: o.Size}
	if c.Targets != "all" {
		if plan.Targets, err = strconv.Atoi(c.Targets); err != nil || plan.Targets < 1 || plan.Targets > c.Conns {
			return fmt.Errorf("%w: --targets: %s is not allowed here; allowed: 1 to --conns, or all", program.ErrUsage, c.Targets)
		}
	}
	if c.Rate < 1 || c.Items < 0 || c.Items > 512 {
		return fmt.Errorf("%w: --rate must be at least 1, --items 0 to 512", program.ErrUsage)
	}
	if plan.Items == 0 {
		plan.Items = 1
		if plan.Targets > 0 {
			plan.Items = max(pushCallMessages/plan.Targets, 1)
		}
	}
	c.set(&o)
	_, err = bench.Push(ctx, o, plan)
	return err
}

type benchConnectCmd struct {
	benchFlags
	gatewayFlags
	Transport string `help:"What clients speak." enum:"ws,tcp" default:"ws"`
	Conns     int    `help:"Logins in a round." default:"5000"`
	Dialers   int    `help:"Clients on their way at once." default:"64"`
	Rate      int    `help:"Logins begun a second; 0 = as fast as they go."`
}

func (c *benchConnectCmd) Run(ctx context.Context) error {
	o, err := c.options(c.Transport)
	if err != nil {
		return err
	}
	if c.Conns < 1 || c.Dialers < 1 || c.Dialers > 1024 || c.Rate < 0 {
		return fmt.Errorf("%w: --conns must be at least 1, --dialers 1 to 1024, --rate at least 0", program.ErrUsage)
	}
	c.set(&o)
	o.Conns, o.Dialers, o.DialRate = c.Conns, c.Dialers, c.Rate
	_, err = bench.Connect(ctx, o)
	return err
}

type benchIdleCmd struct {
	benchFlags
	gatewayFlags
	Transport string `help:"What clients speak." enum:"ws,tcp,wss" default:"ws"`
	Conns     []int  `help:"Numbers of connections, growing." default:"5000,10000,15000"`
}

func (c *benchIdleCmd) Run(ctx context.Context) error {
	o, err := c.options(c.Transport)
	if err != nil {
		return err
	}
	for i, n := range c.Conns {
		if n < 1 || i > 0 && n <= c.Conns[i-1] {
			return fmt.Errorf("%w: --conns: %v is not allowed here; allowed: positive numbers, each larger than the one before", program.ErrUsage, c.Conns)
		}
	}
	c.set(&o)
	_, err = bench.Idle(ctx, o, c.Conns)
	return err
}
