package delivery

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

// Gateway is the way to one gateway's internal port. Push is called by one goroutine at a time.
type Gateway interface {
	// Push returns one result a target. An error means that the outcome is unknown, unless its status is Unavailable.
	Push(ctx context.Context, req *gatewayv1.PushRequest) (*gatewayv1.PushResponse, error)
	Close() error
}

// Gateways opens ways to gateways; Dial does not wait for the connection.
type Gateways interface {
	Dial(addr string) (Gateway, error)
}

// GRPC calls gateways over gRPC, with one connection each, opened at the first call and closed when it was idle long.
func GRPC(c Push) Gateways { return grpcGateways{token: c.Token, tls: c.TLS} }

type grpcGateways struct {
	token string
	tls   *tls.Config
}

const (
	// reconnectFirst and reconnectMax bound the pause between two attempts to connect: a gateway that came back is reached
	// within a second, as the first resend is.
	reconnectFirst = 50 * time.Millisecond
	reconnectMax   = time.Second
	// connectTimeout bounds one attempt to connect, TLS included.
	connectTimeout = 2 * time.Second
)

func (g grpcGateways) Dial(addr string) (Gateway, error) {
	creds := insecure.NewCredentials()
	if g.tls != nil {
		creds = credentials.NewTLS(g.tls)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(creds),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.Codec{})),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectFirst, Multiplier: 2, Jitter: 0.2, MaxDelay: reconnectMax},
			MinConnectTimeout: connectTimeout,
		}))
	if err != nil {
		return nil, fmt.Errorf("gateway %s: %w", addr, err)
	}
	return &grpcGateway{conn: conn, client: gatewayv1.NewGatewayClient(conn), token: g.token}, nil
}

type grpcGateway struct {
	conn   *grpc.ClientConn
	client gatewayv1.GatewayClient
	token  string
}

func (g *grpcGateway) Push(ctx context.Context, req *gatewayv1.PushRequest) (*gatewayv1.PushResponse, error) {
	if g.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+g.token)
	}
	return g.client.Push(ctx, req)
}

func (g *grpcGateway) Close() error { return g.conn.Close() }
