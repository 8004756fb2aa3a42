// Logic-go is a logic tier as somebody may have it who puts Sluice in front: one method, ReceiveMessage, and answers to
// users through Send on a gateway's internal port. The gateway runs with relay.mode unary.
//
// It keeps everything in memory, bounded, so that it stays short: a real one stores a message before it says OK, and does
// not begin to count again when it is restarted.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "logic-go:", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:9300", "where gateways call ReceiveMessage")
	gateway := flag.String("gateway", "127.0.0.1:9090", "the internal port of any gateway; it finds users on the others too")
	token := flag.String("token", os.Getenv("SLUICE_INTERNAL_TOKEN"), "the gateway's internal.token; default: $SLUICE_INTERNAL_TOKEN")
	flag.Parse()

	conn, err := grpc.NewClient(*gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	p := newPusher(gatewayv1.NewGatewayClient(conn), *token)
	pushed := make(chan struct{})
	go func() { defer close(pushed); p.run(ctx) }()
	s := grpc.NewServer()
	statev1.RegisterStateServerServer(s, newTier(p))
	context.AfterFunc(ctx, s.GracefulStop)
	log.Printf("listening on %s, sending through %s", l.Addr(), *gateway)
	if err := s.Serve(l); err != nil {
		return err
	}
	<-pushed
	return nil
}
