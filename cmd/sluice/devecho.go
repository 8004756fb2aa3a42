package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"

	"github.com/sluice-im/sluice/cmd/internal/program"
	"github.com/sluice-im/sluice/gateway/echo"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/netpoll"
)

// messageBytesMax bounds --echo-max: a message is held whole, several times.
const messageBytesMax = 64 << 20

// echoFlags make sluice dev an endpoint for conformance suites, and nothing else: there is no gateway beside it.
type echoFlags struct {
	Echo       string `help:"Run nothing but a WebSocket endpoint at this address, which gives every message back as it was: for conformance suites." placeholder:"HOST:PORT"`
	EchoEngine string `help:"Engine of the echo endpoint." enum:"oneshot,netpoll" default:"oneshot"`
	EchoMax    int    `help:"Bytes of the largest message that is given back." default:"16777216" placeholder:"BYTES"`
	EchoCert   string `help:"Certificate of the echo endpoint, PEM: wss instead of ws." placeholder:"FILE" type:"path"`
	EchoKey    string `help:"Key of the certificate." placeholder:"FILE" type:"path"`
}

func (f *echoFlags) run(ctx context.Context, log *slog.Logger) error {
	if f.EchoMax < 1 || f.EchoMax > messageBytesMax {
		return fmt.Errorf("%w: --echo-max: %d is not allowed here; allowed: 1 to %d", program.ErrUsage, f.EchoMax, messageBytesMax)
	}
	c := echo.Config{Addr: f.Echo, MessageBytes: f.EchoMax, Engine: poller.New}
	if f.EchoEngine == "netpoll" {
		c.Engine = netpoll.New
	}
	scheme := "ws"
	if f.EchoCert != "" || f.EchoKey != "" {
		pair, err := tls.LoadX509KeyPair(f.EchoCert, f.EchoKey)
		if err != nil {
			return fmt.Errorf("%w: --echo-cert, --echo-key: %w", program.ErrUsage, err)
		}
		scheme, c.TLS = "wss", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	return echo.Run(ctx, c, log, func(a net.Addr) {
		fmt.Printf("Echo at %s://%s/ (engine %s, messages up to %d bytes in %d frames). Ctrl-C ends it.\n",
			scheme, reachable(a.String()), f.EchoEngine, f.EchoMax, echo.FragmentsMax)
	})
}
