package stateclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-im/sluice/api/vtcodec"
)

const (
	// messageMax is what both sides accept (design: protocol 2).
	messageMax = 8 << 20
	// connectMax bounds one attempt, from dialling to the first answer.
	connectMax = 2 * time.Second
	// unackedMax is how long the kernel may wait for the other side's TCP before it gives a connection up: a cut network
	// is noticed without gRPC keepalive, which stock servers answer with too_many_pings below 5 min.
	unackedMax = 5 * time.Second
	// Flow-control windows: a batch of 1 MiB must not wait for a round trip, and fixed windows spare the pings with which
	// gRPC would measure one.
	streamWindow = 2 << 20
	connWindow   = 4 << 20
)

// dialOptions are the same for all backends.
func dialOptions(cfg *Config, t targets) ([]grpc.DialOption, error) {
	creds := insecure.NewCredentials()
	if cfg.TLS.CA != "" {
		c, err := tlsConfig(&cfg.TLS, t.host)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(c)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dialTCP),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(), // A second try is the client's, by uuid; gRPC's own would keep copies of every message.
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: retryMin, Multiplier: 1.6, Jitter: 0.5, MaxDelay: retryMax},
			MinConnectTimeout: connectMax,
		}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(vtcodec.Codec{}),
			grpc.MaxCallRecvMsgSize(messageMax),
			grpc.MaxCallSendMsgSize(messageMax),
		),
	}
	if cfg.Token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{"authorization": "Bearer " + cfg.Token}))
	}
	return opts, nil
}

// connect makes a connection of its own: every lane has one, and drops it with its stream, since a stream that fell
// silent says that the connection below it is not to be trusted either.
func (r *relay) connect(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, r.dial...)
}

// bearer is the metadata of every call.
type bearer map[string]string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return b, nil
}

// RequireTransportSecurity leaves it to the operator whether the token may cross his own network in clear.
func (b bearer) RequireTransportSecurity() bool { return false }

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 3 * time.Second, Count: 3},
		Control: func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) {
				failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedMax.Milliseconds()))
			})
			return errors.Join(err, failed)
		},
	}
	return d.DialContext(ctx, "tcp", addr)
}

func tlsConfig(t *TLS, host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if c.ServerName == "" {
		// Empty for static targets: gRPC then takes the host of each address.
		c.ServerName = host
	}
	if t.CA != "system" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("relay.tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("relay.tls.ca: %s holds no certificate", t.CA)
		}
	}
	if t.Cert != "" {
		load := func() (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
			if err != nil {
				return nil, fmt.Errorf("relay.tls.cert: %w", err)
			}
			return &cert, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return c, nil
}
