package hooks

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// Target is who is told. Each call is one batch; an error means that it has to be told again.
type Target interface {
	Stored(ctx context.Context, events []*statev1.StoredEvent) error
	Offline(ctx context.Context, events []*statev1.OfflineEvent) error
	Close() error
}

// ErrTarget means that a text names neither a URL nor a gRPC target.
var ErrTarget = errors.New("must be http://, https://, grpc:// or grpcs:// with a host, or a gRPC target such as dns:///host:port")

// ValidTarget says what is wrong with the form of a target.
func ValidTarget(target string) error {
	scheme, _, ok := strings.Cut(target, "://")
	u, err := url.Parse(target)
	switch {
	case target == "" || strings.ContainsAny(target, " \t\r\n"):
		return ErrTarget
	case ok && (scheme == "http" || scheme == "https" || scheme == "grpc" || scheme == "grpcs") && (err != nil || u.Host == ""):
		return ErrTarget
	}
	return nil
}

// Dial makes a Target; it does not wait for a connection. With http:// and https:// each batch is a POST of the request
// message as JSON, with the hook's name in the header Sluice-Hook, and any 2xx means that it was taken. Everything else is
// a gRPC target of state.v1.Hooks, without TLS unless it is grpcs://. A token goes along as "authorization: Bearer".
func Dial(target, token string) (Target, error) {
	if err := ValidTarget(target); err != nil {
		return nil, fmt.Errorf("hook %q: %w", target, err)
	}
	scheme, rest, _ := strings.Cut(target, "://")
	creds := insecure.NewCredentials()
	switch scheme {
	case "http", "https":
		return newWeb(target, token), nil
	case "grpcs":
		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
		target = rest
	case "grpc":
		target = rest
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(), grpc.WithConnectParams(
		grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: retryFirst, Multiplier: 2, Jitter: 0.2, MaxDelay: retryMax}, MinConnectTimeout: connectTimeout}))
	if err != nil {
		return nil, fmt.Errorf("hook %q: %w", target, err)
	}
	return &rpc{conn: conn, client: statev1.NewHooksClient(conn), token: token}, nil
}

const (
	// connectTimeout bounds connecting, TLS included.
	connectTimeout = 5 * time.Second
	// answerMax bounds what is read of an HTTP answer, so that its connection can be used again.
	answerMax = 64 << 10
	// webIdle is how long a connection without a batch is kept.
	webIdle = 90 * time.Second
)

// rpc is a gRPC target.
type rpc struct {
	conn   *grpc.ClientConn
	client statev1.HooksClient
	token  string
}

func (r *rpc) context(ctx context.Context) context.Context {
	if r.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.token)
}

func (r *rpc) Stored(ctx context.Context, events []*statev1.StoredEvent) error {
	_, err := r.client.Stored(r.context(ctx), &statev1.StoredRequest{Events: events})
	return err
}

func (r *rpc) Offline(ctx context.Context, events []*statev1.OfflineEvent) error {
	_, err := r.client.Offline(r.context(ctx), &statev1.OfflineRequest{Events: events})
	return err
}

func (r *rpc) Close() error { return r.conn.Close() }

// web is an HTTP target.
type web struct {
	url, token string
	client     *http.Client
	transport  *http.Transport
}

func newWeb(target, token string) *web {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: connectTimeout, IdleConnTimeout: webIdle, ForceAttemptHTTP2: true,
		// One batch a time and walk: own node, other nodes, found later.
		MaxConnsPerHost: 4,
	}
	// A redirect would turn the POST into a GET, or send the token elsewhere.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &web{url: target, token: token, client: &http.Client{Transport: t, CheckRedirect: stay}, transport: t}
}

func (w *web) Stored(ctx context.Context, events []*statev1.StoredEvent) error {
	return w.post(ctx, Stored, &statev1.StoredRequest{Events: events})
}

func (w *web) Offline(ctx context.Context, events []*statev1.OfflineEvent) error {
	return w.post(ctx, Offline, &statev1.OfflineRequest{Events: events})
}

func (w *web) post(ctx context.Context, hook string, m proto.Message) error {
	body, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode events: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Sluice-Hook", hook)
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	res, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, answerMax)) // only to use the connection again
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("answered %s", res.Status)
	}
	return nil
}

func (w *web) Close() error {
	w.transport.CloseIdleConnections()
	return nil
}
