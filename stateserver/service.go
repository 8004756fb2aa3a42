package stateserver

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
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

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

const (
	// recvBytesMax is what both sides accept (design: protocol 2); a batch ends at 1 MiB.
	recvBytesMax = 8 << 20
	// concurrentStreams bounds the calls of one connection: a gateway has a few streams, or up to 1,000 unary calls.
	concurrentStreams = 1100
	headerBytesMax    = 16 << 10
	connectTimeout    = 5 * time.Second
	// pingsMin is the shortest keepalive that clients may use; the relay has its own ping.
	pingsMin = 10 * time.Second
)

// service is the gRPC side of a Server.
type service struct {
	statev1.UnimplementedStateServerServer
	s *Server
}

var _ statev1.StateServerServer = service{}

func (s *Server) newGRPC() (*grpc.Server, error) {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(recvBytesMax), grpc.MaxSendMsgSize(recvBytesMax),
		grpc.MaxConcurrentStreams(concurrentStreams), grpc.MaxHeaderListSize(headerBytesMax), grpc.ConnectionTimeout(connectTimeout),
		grpc.ForceServerCodecV2(vtcodec.Codec{}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsMin, PermitWithoutStream: true}),
	}
	if t := s.cfg.GRPC.Token; t != "" {
		opts = append(opts, grpc.UnaryInterceptor(unaryToken(t)), grpc.StreamInterceptor(streamToken(t)))
	}
	if s.cfg.GRPC.TLS.Cert != "" {
		c, err := serverTLS(s.cfg.GRPC.TLS)
		if err != nil {
			return nil, fmt.Errorf("grpc.tls: %w", err)
		}
		opts = append(opts, grpc.Creds(credentials.NewTLS(c)))
	}
	g := grpc.NewServer(append(opts, s.deps.ServerOptions...)...)
	statev1.RegisterStateServerServer(g, service{s: s})
	statev1.RegisterMessagingServer(g, messaging{s: s})
	return g, nil
}

func serverTLS(c TLS) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if c.CA == "" {
		return conf, nil
	}
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return nil, err
	}
	conf.ClientCAs = x509.NewCertPool()
	if !conf.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", c.CA)
	}
	conf.ClientAuth = tls.RequireAndVerifyClientCert
	return conf, nil
}

func checkToken(ctx context.Context, token string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get("authorization") {
		if got, ok := strings.CutPrefix(v, "Bearer "); ok && subtle.ConstantTimeCompare([]byte(got), []byte(token)) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "bearer token missing or wrong")
}

func unaryToken(token string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := checkToken(ctx, token); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

func streamToken(token string) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := checkToken(ss.Context(), token); err != nil {
			return err
		}
		return next(srv, ss)
	}
}

// call is the sink of one unary call. It has room for its one answer.
type call chan answer

func (c call) answered(_ *uplink, a answer) { c <- a }

// whenFirst implements starter: a unary call has nothing before it.
func (call) whenFirst(_ *uplink, start func()) { start() }

// ReceiveMessage implements statev1.StateServerServer.
func (s service) ReceiveMessage(ctx context.Context, in *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
	it := &statev1.UplinkItem{
		ConnId: in.ConnId, ConnSeq: in.ConnSeq, Uid: in.Uid, DeviceId: in.DeviceId, Epoch: in.Epoch, Payload: in.Payload,
		ReceivedAtMs: in.ReceivedAtMs, RemoteAddr: in.RemoteAddr, TraceParent: in.TraceParent,
	}
	c := make(call, 1)
	u := s.s.uplinkOf(in.Incarnation, it, c, time.Now())
	u.deadline, _ = ctx.Deadline()
	s.s.handle(ctx, []*statev1.UplinkItem{it}, []*uplink{u}, c)
	select {
	case a := <-c:
		if a.code != codes.OK {
			return nil, status.Error(a.code, a.detail)
		}
		return &statev1.ReceiveMessageResponse{ResponsePayload: a.payload}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Connect implements statev1.StateServerServer. It knows no tokens: whoever the gateway has authenticated is welcome.
func (s service) Connect(_ context.Context, in *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
	if !ident.ValidUID(in.Uid) {
		return &statev1.ConnectResponse{Refused: true, Reason: reason.AuthRefused.String()}, nil
	}
	return &statev1.ConnectResponse{Uid: in.Uid, DeviceId: in.DeviceId}, nil
}

// Disconnect implements statev1.StateServerServer.
func (s service) Disconnect(_ context.Context, in *statev1.DisconnectRequest) (*statev1.DisconnectResponse, error) {
	s.s.peers.forget(in.Incarnation, in.ConnId)
	return &statev1.DisconnectResponse{}, nil
}

// fromStore translates errors of the store at the edge of the Messaging service.
func fromStore(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Unavailable, err.Error())
}
