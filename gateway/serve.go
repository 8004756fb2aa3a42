package gateway

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

const (
	// internalMessageMax bounds one request on the internal port, as both sides of the relay do.
	internalMessageMax = 8 << 20
	// internalStreamsMax bounds the calls under way on one connection (traps S7).
	internalStreamsMax = 1024
	// internalHandshakeMax ends a connection that does not get through its handshake.
	internalHandshakeMax = 5 * time.Second
	// internalPingMin is how often a client may send keepalive pings.
	internalPingMin = 10 * time.Second
)

// newInternalServer makes the server for gateway.v1: the logic tier's way to push, and other gateways' to kick.
func newInternalServer(g *Gateway) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(vtcodec.Codec{}),
		grpc.MaxRecvMsgSize(internalMessageMax),
		grpc.MaxConcurrentStreams(internalStreamsMax),
		grpc.ConnectionTimeout(internalHandshakeMax),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: internalPingMin, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(bearer(g.cfg.Internal.Token)),
	}
	if config := g.internalTLS.config(); config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	server := grpc.NewServer(options...)
	gatewayv1.RegisterGatewayServer(server, &internal{g: g})
	return server
}

// bearer asks every call for the token; an empty token asks for nothing.
func bearer(token string) grpc.UnaryServerInterceptor {
	want := []byte("Bearer " + token)
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if token != "" {
			md, _ := metadata.FromIncomingContext(ctx)
			got := strings.Join(md.Get("authorization"), ",")
			if subtle.ConstantTimeCompare([]byte(got), want) != 1 {
				return nil, status.Error(codes.Unauthenticated, "the token of internal.token is needed")
			}
		}
		return handler(ctx, req)
	}
}

// clientTLS trusts the authority that also signs the clients, or the machine's own.
func clientTLS(t TLS) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if t.ClientCA != "" {
		if config.RootCAs, err = loadPool(t.ClientCA); err != nil {
			return nil, err
		}
	}
	return config, nil
}

var errNoCertificate = errors.New("no certificate in it")

func loadPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: %w", file, errNoCertificate)
	}
	return pool, nil
}
