package gateway

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	plaintext "google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

const (
	// neighboursMax bounds the connections to other gateways that are kept open. It is more than all chunks of all Sends
	// and all kickers can use at once, so that one of them is always free to be closed.
	neighboursMax = sendChunksMax*forwardsAtOnce + 2*kickers
	// A gateway that comes back under its old address is reached again within neighbourRetryMax.
	neighbourRetry    = 100 * time.Millisecond
	neighbourRetryMax = 2 * time.Second
	// neighbourConnectMax bounds one attempt to connect.
	neighbourConnectMax = time.Second
	// A cut network is noticed within these two; an internal port accepts a ping every internalPingMin.
	neighbourPing     = 15 * time.Second
	neighbourPingMax  = 5 * time.Second
	neighbourIdleTime = time.Minute
)

// neighbours are the connections to other gateways' internal ports.
type neighbours struct {
	// Fixed after newNeighbours.
	options []grpc.DialOption

	mu sync.Mutex
	// Guarded by mu.
	conns map[string]*neighbour
	uses  uint64
}

// neighbour is the connection to one other gateway. Its fields are guarded by neighbours.mu.
type neighbour struct {
	conn *grpc.ClientConn
	// calls are under way; used is the number of the last use.
	calls int
	used  uint64
}

func newNeighbours(options []grpc.DialOption) *neighbours {
	return &neighbours{options: options, conns: make(map[string]*neighbour)}
}

// neighbourOptions are how one gateway reaches another: they share token and certificates.
func neighbourOptions(c Internal) ([]grpc.DialOption, error) {
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(vtcodec.Codec{})),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(), // a second Push might be written twice
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(neighbourIdleTime),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: neighbourPing, Timeout: neighbourPingMax}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: neighbourConnectMax,
			Backoff: backoff.Config{BaseDelay: neighbourRetry, Multiplier: 2, Jitter: 0.2, MaxDelay: neighbourRetryMax}}),
	}
	if c.TLS.Cert == "" {
		options = append(options, grpc.WithTransportCredentials(plaintext.NewCredentials()))
	} else {
		config, err := clientTLS(c.TLS)
		if err != nil {
			return nil, fmt.Errorf("internal.tls: %w", err)
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	}
	if c.Token != "" {
		options = append(options, grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.Token), method, req, reply, cc, opts...)
		}))
	}
	return options, nil
}

// push is one Push to the gateway at addr; the caller bounds it in time.
func (n *neighbours) push(ctx context.Context, addr string, req *gatewayv1.PushRequest) (*gatewayv1.PushResponse, error) {
	at, err := n.begin(addr)
	if err != nil {
		return nil, err
	}
	defer n.end(at)
	return gatewayv1.NewGatewayClient(at.conn).Push(ctx, req)
}

// kick is one Kick by the gateway at addr; the caller bounds it in time.
func (n *neighbours) kick(ctx context.Context, addr string, req *gatewayv1.KickRequest) (*gatewayv1.KickResponse, error) {
	at, err := n.begin(addr)
	if err != nil {
		return nil, err
	}
	defer n.end(at)
	return gatewayv1.NewGatewayClient(at.conn).Kick(ctx, req)
}

// begin is the connection to a gateway, for one call; it does not wait for it to be there.
func (n *neighbours) begin(addr string) (*neighbour, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := n.conns[addr]
	if at == nil {
		n.makeRoom()
		conn, err := grpc.NewClient("passthrough:///"+addr, n.options...)
		if err != nil {
			return nil, fmt.Errorf("gateway %.256q: %w", addr, err)
		}
		at = &neighbour{conn: conn}
		n.conns[addr] = at
	}
	n.uses++
	at.calls++
	at.used = n.uses
	return at, nil
}

func (n *neighbours) end(at *neighbour) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at.calls--
}

// makeRoom closes the connection that was not used for longest. n.mu is held.
func (n *neighbours) makeRoom() {
	if len(n.conns) < neighboursMax {
		return
	}
	oldest := ""
	for addr, at := range n.conns {
		if at.calls == 0 && (oldest == "" || at.used < n.conns[oldest].used) {
			oldest = addr
		}
	}
	if at := n.conns[oldest]; at != nil {
		_ = at.conn.Close()
		delete(n.conns, oldest)
	}
}

func (n *neighbours) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr, at := range n.conns {
		_ = at.conn.Close()
		delete(n.conns, addr)
	}
}
