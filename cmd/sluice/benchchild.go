package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-im/sluice/bench/bare"
	"github.com/sluice-im/sluice/bench/load"
	"github.com/sluice-im/sluice/bench/logic"
)

// benchSecret signs the tokens of the load generator; the gateway under measurement listens on loopback only.
const benchSecret = "bench-secret-of-at-least-32-bytes"

type benchChildCmd struct {
	Bare    benchBareCmd    `cmd:""`
	Writer  benchWriterCmd  `cmd:""`
	Logic   benchLogicCmd   `cmd:""`
	Redis   benchRedisCmd   `cmd:""`
	Gateway benchGatewayCmd `cmd:""`
	Load    benchLoadCmd    `cmd:""`
	Poller  benchPollerCmd  `cmd:""`
}

// sayReady is the line that the parent waits for.
func sayReady(addrs ...string) { fmt.Println("ready " + strings.Join(addrs, " ")) }

type benchBareCmd struct {
	Mode string `enum:"level,oneshot,early,ordinary,workers,runtime" default:"level"`
}

func (c *benchBareCmd) Run(ctx context.Context) error {
	return bare.Echo(ctx, "127.0.0.1:0", bare.Mode(c.Mode), func(a net.Addr) { sayReady(a.String()) })
}

// runs does one run for each line "run DURATION" on standard input and prints what it returned, until the input ends.
func runs(do func(d time.Duration) (any, error)) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		d, err := time.ParseDuration(strings.TrimPrefix(lines.Text(), "run "))
		if err != nil {
			return err
		}
		r, err := do(d)
		if err != nil {
			return err
		}
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		fmt.Println(string(b))
	}
	return lines.Err()
}

type benchWriterCmd struct {
	Conns int `required:""`
	Bytes int `required:""`
	Rate  int `required:""`
}

func (c *benchWriterCmd) Run(ctx context.Context) error {
	w, err := bare.Accept(ctx, "127.0.0.1:0", c.Conns, c.Bytes, c.Rate, func(a net.Addr) { sayReady(a.String()) })
	if err != nil {
		return err
	}
	defer w.Close()
	return runs(func(d time.Duration) (any, error) { return w.Run(ctx, d), nil })
}

type benchLogicCmd struct {
	PushTargets int
	PushItems   int `help:"0 = only answer."`
	PushRate    int
	Size        int
}

// Run answers, and pushes for each line "run DURATION".
func (c *benchLogicCmd) Run(ctx context.Context) error {
	ready := func(a net.Addr) { sayReady(a.String()) }
	if c.PushItems == 0 {
		return logic.Serve(ctx, "127.0.0.1:0", nil, ready)
	}
	book := &logic.Book{}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return logic.Serve(ctx, "127.0.0.1:0", book, ready) })
	all.Go(func() error {
		return runs(func(d time.Duration) (any, error) {
			return book.Push(ctx, logic.Plan{Targets: c.PushTargets, Items: c.PushItems, Rate: c.PushRate, Size: c.Size}, d)
		})
	})
	return all.Wait()
}

type benchLoadCmd struct {
	Addr       string `required:""`
	Transport  string `enum:"ws,tcp,wss,raw" required:""`
	Conns      int    `required:""`
	InFlight   int    `default:"1"`
	Rate       int
	Size       int
	First      int `help:"Number of the first client, for its user id."`
	Dialers    int
	DialRate   int
	FrameBytes int
}

// Run connects all clients, says ready and how long that took, and then does what it is told.
func (c *benchLoadCmd) Run(ctx context.Context) error {
	f, err := load.Dial(load.Options{Addr: c.Addr, Transport: load.Transport(c.Transport), Conns: c.Conns, InFlight: c.InFlight,
		Rate: c.Rate, Size: c.Size, Dialers: c.Dialers, DialRate: c.DialRate, FrameBytes: c.FrameBytes,
		Token: func(i int) (string, error) { return benchToken(c.First + i) }})
	if err != nil {
		return err
	}
	defer f.Close()
	took, err := json.Marshal(f.DialTime())
	if err != nil {
		return err
	}
	sayReady(string(took))
	return runs(func(d time.Duration) (any, error) { return f.Run(ctx, d) })
}

func benchToken(i int) (string, error) {
	t := tokenCmd{UID: "bench-" + strconv.Itoa(i), TTL: time.Hour, Secret: benchSecret}
	return t.sign(time.Now())
}
