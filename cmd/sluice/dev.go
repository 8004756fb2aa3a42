package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/cmd/internal/wiring"
	"github.com/sluice-im/sluice/gateway"
	"github.com/sluice-im/sluice/internal/devredis"
	"github.com/sluice-im/sluice/stateserver"
	"github.com/sluice-im/sluice/web/sample"
)

// devTokenLife is how long the printed tokens are good.
const devTokenLife = 30 * 24 * time.Hour

type devCmd struct {
	Dir   string `help:"Where messages and the secret are kept between starts." default:".sluice-dev" type:"path"`
	Fresh bool   `help:"Empty the directory first."`
	Redis string `help:"Use a real Redis at this address instead of the embedded one." placeholder:"HOST:PORT"`
	WS    string `help:"Address for WebSocket clients." default:"127.0.0.1:8080"`
	TCP   string `help:"Address for TCP clients." default:"127.0.0.1:8081"`
	Page  string `help:"Address of the sample page, on this machine only; off = none." default:"127.0.0.1:8088"`

	Internal         string `help:"Address of the gateway's internal port (Send, Push, Kick)." default:"127.0.0.1:9090"`
	Admin            string `help:"Address of the gateway's admin port." default:"127.0.0.1:9091"`
	Stateserver      string `help:"Address of the StateServer." default:"127.0.0.1:9200"`
	StateserverAdmin string `help:"Address of the StateServer's admin port." default:"127.0.0.1:9201"`

	Set []string `help:"Set one key of the gateway's configuration; may be repeated." placeholder:"KEY=VALUE" sep:"none"`
	Log string   `help:"Log level: debug, info, warn, error." default:"warn"`

	echoFlags
}

// Run starts everything in one process and ends it when ctx does.
func (c *devCmd) Run(ctx context.Context) error {
	log, err := program.Logger(os.Stderr, c.Log, "text")
	if err != nil {
		return err
	}
	if c.Echo != "" {
		return c.run(ctx, log)
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
	page, err := listenPage(ctx, c.Page)
	if err != nil {
		return err
	}
	if page != nil {
		defer func() { _ = page.Close() }()
	}
	// Only to find mistakes before anything starts: where the StateServer will be is not known yet.
	if _, err := c.gatewayConfig(secret, c.Stateserver); err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	listening := make(chan string, 1)
	all.Go(func() error {
		return wiring.RunStateServer(ctx, c.stateServerConfig(), log, func(s *stateserver.Server) { listening <- s.Addr() })
	})
	all.Go(func() error {
		select {
		case addr := <-listening:
			return c.runGateway(ctx, all, secret, addr, page, log)
		case <-ctx.Done():
			return nil
		}
	})
	return all.Wait()
}

// runGateway runs the gateway in front of the StateServer at logic, and what needs to know its addresses.
func (c *devCmd) runGateway(ctx context.Context, all *errgroup.Group, secret []byte, logic string, page net.Listener, log *slog.Logger) error {
	cfg, err := c.gatewayConfig(secret, logic)
	if err != nil {
		return err
	}
	g, err := gateway.New(cfg, gateway.Deps{Log: log, Build: program.Version()})
	if err != nil {
		return err
	}
	all.Go(func() error {
		select {
		case <-g.Started():
		case <-ctx.Done():
			return nil
		}
		tokens, err := devTokens(secret)
		if err != nil {
			return err
		}
		pageURL := "off"
		if page != nil {
			pageURL = "http://" + page.Addr().String() + "/ (alice and bob side by side)"
			users := [2]sample.User{{UID: devUsers[0], Token: tokens[0]}, {UID: devUsers[1], Token: tokens[1]}}
			all.Go(func() error {
				return servePage(ctx, page, sample.Session{URL: "ws://" + reachable(g.Addr("ws")) + "/ws", Users: users})
			})
		}
		return c.announce(os.Stdout, g, pageURL, tokens)
	})
	return g.Run(ctx)
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

func (c *devCmd) stateServerConfig() stateserver.Config {
	ss := stateserver.Default()
	ss.GRPC.Addr, ss.Admin.Addr = c.Stateserver, c.StateserverAdmin
	ss.Store.DSN = "sqlite://" + filepath.Join(c.Dir, "messages.db")
	ss.Redis.Addrs = []string{c.Redis}
	return ss
}

// gatewayConfig leaves the origins of the listener open: no page but the sample page has a token of this system.
func (c *devCmd) gatewayConfig(secret []byte, logic string) (gateway.Config, error) {
	gw := gateway.Default()
	gw.Listeners = []gateway.Listener{
		{Name: "ws", Protocol: "ws", Addr: c.WS, Path: "/ws"},
		{Name: "tcp", Protocol: "tcp", Addr: c.TCP},
	}
	gw.Internal.Addr, gw.Admin.Addr = c.Internal, c.Admin
	gw.Auth.JWT.Secret = string(secret)
	gw.Routes.Redis.Addrs = []string{c.Redis}
	gw.Relay.Targets = "static:///" + logic
	// Nobody watches readiness here, and whoever pressed Ctrl-C wants it to end.
	gw.Drain.PreDelay, gw.Drain.Window = 0, time.Second
	err := program.Load(&gw, program.Sources(c.Set))
	return gw, err
}

// devUsers are the two who have tokens from the start.
var devUsers = [2]string{"alice", "bob"}

// devTokens signs a token for each of devUsers.
func devTokens(secret []byte) (tokens [2]string, err error) {
	for i, uid := range devUsers {
		t := tokenCmd{UID: uid, TTL: devTokenLife, Secret: string(secret)}
		if tokens[i], err = t.sign(time.Now()); err != nil {
			return tokens, err
		}
	}
	return tokens, nil
}

// announce prints what a newcomer needs next.
func (c *devCmd) announce(w io.Writer, g *gateway.Gateway, page string, tokens [2]string) error {
	ws, tcp := reachable(g.Addr("ws")), reachable(g.Addr("tcp"))
	_, err := fmt.Fprintf(w, `Sluice is running: gateway, StateServer on SQLite, Redis at %s. Ctrl-C ends it.

  page       %s
  clients    ws://%s/ws   tcp://%s
  internal   %s (gRPC: Send, Push, Kick)
  admin      http://%s/readyz  /metrics  /api/v1/status
  data       %s (kept between starts; --fresh empties it)

Or open two more terminals and chat:

  go run ./cmd/sluice chat --url ws://%s/ws --to bob --token %s

  go run ./cmd/sluice chat --url tcp://%s --to alice --token %s

`, c.Redis, page, ws, tcp, g.Addr("internal"), g.Addr("admin"), c.Dir, ws, tokens[0], tcp, tokens[1])
	return err
}
