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

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-im/sluice/bench/bare"
	"github.com/sluice-im/sluice/bench/load"
	"github.com/sluice-im/sluice/bench/logic"
)

// benchSecret signs the tokens of the load generator; the gateway under measurement listens on loopback only.
const benchSecret = "bench-secret-of-at-least-32-bytes"

type benchChildCmd struct {
	Bare    benchBareCmd    `cmd:""`
	Logic   benchLogicCmd   `cmd:""`
	Redis   benchRedisCmd   `cmd:""`
	Gateway benchGatewayCmd `cmd:""`
	Load    benchLoadCmd    `cmd:""`
	Poller  benchPollerCmd  `cmd:""`
}

// sayReady is the line that the parent waits for.
func sayReady(addrs ...string) { fmt.Println("ready " + strings.Join(addrs, " ")) }

type benchBareCmd struct {
	Mode string `enum:"level,oneshot" default:"level"`
}

func (c *benchBareCmd) Run(ctx context.Context) error {
	return bare.Echo(ctx, "127.0.0.1:0", bare.Mode(c.Mode), func(a net.Addr) { sayReady(a.String()) })
}

type benchLogicCmd struct{}

func (c *benchLogicCmd) Run(ctx context.Context) error {
	return logic.Serve(ctx, "127.0.0.1:0", func(a net.Addr) { sayReady(a.String()) })
}

type benchLoadCmd struct {
	Addr      string `required:""`
	Transport string `enum:"ws,tcp,raw" required:""`
	Conns     int    `required:""`
	InFlight  int    `default:"1"`
	Rate      int
	Size      int
	First     int `help:"Number of the first client, for its user id."`
}

// Run connects all clients, says ready, and then does one run for each line "run DURATION" on standard input.
func (c *benchLoadCmd) Run(ctx context.Context) error {
	f, err := load.Dial(load.Options{Addr: c.Addr, Transport: load.Transport(c.Transport), Conns: c.Conns, InFlight: c.InFlight,
		Rate: c.Rate, Size: c.Size, Token: func(i int) (string, error) { return benchToken(c.First + i) }})
	if err != nil {
		return err
	}
	defer f.Close()
	sayReady("-")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		d, err := time.ParseDuration(strings.TrimPrefix(lines.Text(), "run "))
		if err != nil {
			return err
		}
		r, err := f.Run(ctx, d)
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

func benchToken(i int) (string, error) {
	claims := jwt.MapClaims{"sub": "bench-" + strconv.Itoa(i), "exp": time.Now().Add(time.Hour).Unix()}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(benchSecret))
}
