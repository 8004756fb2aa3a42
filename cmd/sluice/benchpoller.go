package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/netpoll"
)

type benchPollerCmd struct {
	Engine string `enum:"oneshot,netpoll" default:"oneshot"`
}

// Run echoes bytes through the engine alone: what the connection layer costs by itself.
func (c *benchPollerCmd) Run(ctx context.Context) error {
	start := poller.New
	if c.Engine == "netpoll" {
		start = netpoll.New
	}
	e, err := start(poller.Config{}, echoBytes{}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	defer e.Shutdown()
	addr, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	sayReady(addr.String())
	<-ctx.Done()
	return nil
}

// echoBytes gives every byte back.
type echoBytes struct{}

func (echoBytes) Open(poller.Conn, poller.Info, time.Duration) poller.Verdict { return poller.Rearm }

func (echoBytes) Data(c poller.Conn, in poller.Input) (int, poller.Verdict) {
	if s := c.Queue(in.Bytes); s == poller.StatusOverflow {
		fmt.Fprintln(os.Stderr, "echo: outbox full")
	}
	return len(in.Bytes), poller.Rearm
}

func (echoBytes) Timeout(poller.Conn, time.Duration) poller.Verdict { return poller.Rearm }

func (echoBytes) Closed(poller.ID, poller.Cause) {}

func (echoBytes) PassEnd(int) {}
