package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/cmd/internal/wiring"
	"github.com/sluice-im/sluice/gateway"
	"github.com/sluice-im/sluice/internal/devredis"
	"github.com/sluice-im/sluice/stateserver"
)

// devTokenLife is how long the printed tokens are good.
const devTokenLife = 30 * 24 * time.Hour

type devCmd struct {
	Dir   string   `help:"Where messages and the secret are kept between starts." default:".sluice-dev" type:"path"`
	Fresh bool     `help:"Empty the directory first."`
	Redis string   `help:"Use a real Redis at this address instead of the embedded one." placeholder:"HOST:PORT"`
	WS    string   `help:"Address for WebSocket clients." default:"127.0.0.1:8080"`
	TCP   string   `help:"Address for TCP clients." default:"127.0.0.1:8081"`
	Set   []string `help:"Set one key of the gateway's configuration; may be repeated." placeholder:"KEY=VALUE" sep:"none"`
	Log   string   `help:"Log level: debug, info, warn, error." default:"warn"`
}

// Run starts everything in one process and ends it when ctx does.
func (c *devCmd) Run(ctx context.Context) error {
	log, err := program.Logger(os.Stderr, c.Log, "text")
	if err != nil {
		return err
	}
	secret, err := c.prepare()
	if err != nil {
		return err
	}
	if c.Redis == "" {
		r, err := devredis.Start("127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("start the embedded Redis: %w", err)
		}
		defer r.Close()
		c.Redis = r.Addr()
	}
	gwCfg, ssCfg, err := c.configs(secret)
	if err != nil {
		return err
	}
	g, err := gateway.New(gwCfg, gateway.Deps{Log: log, Build: program.Version()})
	if err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	listening := make(chan struct{})
	all.Go(func() error {
		return wiring.RunStateServer(ctx, ssCfg, log, func(*stateserver.Server) { close(listening) })
	})
	all.Go(func() error {
		select {
		case <-listening:
			return g.Run(ctx)
		case <-ctx.Done():
			return nil
		}
	})
	all.Go(func() error {
		select {
		case <-g.Started():
			return c.announce(os.Stdout, g, secret)
		case <-ctx.Done():
			return nil
		}
	})
	return all.Wait()
}

// prepare makes the directory and the secret in it.
func (c *devCmd) prepare() ([]byte, error) {
	if c.Fresh {
		if err := emptyDir(c.Dir); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(c.Dir, "secret")
	secret, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		secret = []byte(rand.Text() + rand.Text())
		err = os.WriteFile(file, secret, 0o600)
	}
	return secret, err
}

// emptyDir removes what this command has made, and refuses a directory that holds anything else.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "secret" && !strings.HasPrefix(e.Name(), "messages.db") {
			return fmt.Errorf("%w: --fresh: %s holds %s, which sluice dev has not made", program.ErrUsage, dir, e.Name())
		}
	}
	return os.RemoveAll(dir)
}

func (c *devCmd) configs(secret []byte) (gateway.Config, stateserver.Config, error) {
	ss := stateserver.Default()
	ss.GRPC.Addr, ss.Admin.Addr = "127.0.0.1:9200", "127.0.0.1:9201"
	ss.Store.DSN = "sqlite://" + filepath.Join(c.Dir, "messages.db")
	ss.Redis.Addrs = []string{c.Redis}

	gw := gateway.Default()
	gw.Listeners = []gateway.Listener{
		{Name: "ws", Protocol: "ws", Addr: c.WS, Path: "/ws"},
		{Name: "tcp", Protocol: "tcp", Addr: c.TCP},
	}
	gw.Auth.JWT.Secret = string(secret)
	gw.Routes.Redis.Addrs = []string{c.Redis}
	gw.Relay.Targets = "static:///" + ss.GRPC.Addr
	// Nobody watches readiness here, and whoever pressed Ctrl-C wants it to end.
	gw.Drain.PreDelay, gw.Drain.Window = 0, time.Second
	err := program.Load(&gw, program.Sources(c.Set))
	return gw, ss, err
}

// announce prints what a newcomer needs next.
func (c *devCmd) announce(w io.Writer, g *gateway.Gateway, secret []byte) error {
	tokens := map[string]string{}
	for _, uid := range []string{"alice", "bob"} {
		claims := jwt.MapClaims{"sub": uid, "exp": time.Now().Add(devTokenLife).Unix()}
		t, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
		if err != nil {
			return err
		}
		tokens[uid] = t
	}
	_, err := fmt.Fprintf(w, `Sluice is running: gateway, StateServer on SQLite, Redis at %s. Ctrl-C ends it.

  clients    ws://%s/ws   tcp://%s
  admin      http://%s/readyz  /metrics  /api/v1/status
  data       %s (kept between starts; --fresh empties it)

Open two more terminals and chat:

  go run ./cmd/sluice chat --url ws://%s/ws --to bob --token %s

  go run ./cmd/sluice chat --url tcp://%s --to alice --token %s

`, c.Redis, g.Addr("ws"), g.Addr("tcp"), g.Addr("admin"), c.Dir, g.Addr("ws"), tokens["alice"], g.Addr("tcp"), tokens["bob"])
	return err
}
