package main

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/gateway"
	"github.com/sluice-im/sluice/internal/devredis"
)

// unlimited and unlimitedBytes are rates that no load generator reaches on one connection, within what the configuration
// allows; the buckets are charged all the same.
const (
	unlimited      = 1 << 20
	unlimitedBytes = 1 << 30
)

type benchRedisCmd struct{}

func (c *benchRedisCmd) Run(ctx context.Context) error {
	s, err := devredis.Start("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer s.Close()
	sayReady(s.Addr())
	<-ctx.Done()
	return nil
}

type benchGatewayCmd struct {
	Logic  string `required:""`
	Redis  string `required:""`
	Engine string `default:"oneshot"`
	Mode   string `default:"stream"`
	Cert   string `help:"Certificate of a third listener, wss; none without."`
	Key    string
	Set    []string `sep:"none"`
}

// Run is the real gateway with everything on and limits that are never reached.
func (c *benchGatewayCmd) Run(ctx context.Context) error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	log, err := program.Logger(os.Stderr, "warn", "text")
	if err != nil {
		return err
	}
	g, err := gateway.New(cfg, gateway.Deps{Log: log, Build: program.Version()})
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return g.Run(ctx) })
	select {
	case <-g.Started():
		sayReady(g.Addr("ws"), g.Addr("tcp"), g.Addr("admin"), g.Addr("wss"))
	case <-ctx.Done():
	}
	return all.Wait()
}

func (c *benchGatewayCmd) config() (gateway.Config, error) {
	cfg := gateway.Default()
	cfg.Listeners = []gateway.Listener{
		{Name: "ws", Protocol: "ws", Addr: "127.0.0.1:0", Path: "/ws"},
		{Name: "tcp", Protocol: "tcp", Addr: "127.0.0.1:0"},
	}
	if c.Cert != "" {
		cfg.Listeners = append(cfg.Listeners, gateway.Listener{Name: "wss", Protocol: "ws", Addr: "127.0.0.1:0", Path: "/ws",
			TLS: gateway.TLS{Cert: c.Cert, Key: c.Key}})
	}
	cfg.Internal.Addr, cfg.Admin.Addr = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Engine.Name, cfg.Relay.Mode = c.Engine, c.Mode
	cfg.Auth.JWT.Secret = benchSecret
	cfg.Routes.Redis.Addrs = []string{c.Redis}
	cfg.Relay.Targets = "static:///" + c.Logic
	cfg.Limits.Accept.PerSecond, cfg.Limits.Accept.Burst = 0, 0
	u := &cfg.Limits.Uplink
	u.MessagesPerSecond, u.MessagesBurst, u.BytesPerSecond, u.BytesBurst = unlimited, unlimited, unlimitedBytes, unlimitedBytes
	cfg.Drain.PreDelay = 0
	return cfg, program.Load(&cfg, program.Sources(c.Set))
}
