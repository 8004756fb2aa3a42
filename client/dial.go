package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/gobwas/ws"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
)

// refusalBytes bounds what is read of the body with which an upgrade is refused: one line.
const refusalBytes = 512

// target is a URL taken apart.
type target struct {
	websocket bool
	encrypted bool
	// address is host:port.
	address string
	host    string
	url     *url.URL
}

func parseTarget(raw string) (target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return target{}, fmt.Errorf("client: URL: %w", err)
	}
	t := target{url: u, host: u.Hostname()}
	port := u.Port()
	switch u.Scheme {
	case "ws":
		t.websocket, port = true, orDefault(port, "80")
	case "wss":
		t.websocket, t.encrypted, port = true, true, orDefault(port, "443")
	case "tcp":
	case "tls":
		t.encrypted = true
	default:
		return target{}, fmt.Errorf("client: URL is %q: ws://, wss://, tcp:// or tls:// is needed", raw)
	}
	if t.host == "" || port == "" {
		return target{}, fmt.Errorf("client: URL is %q: host and port are needed", raw)
	}
	t.address = net.JoinHostPort(t.host, port)
	return t, nil
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// dial opens a network connection and, for ws and wss, upgrades it. rest is what the server sent right behind its
// response.
func (c *Client) dial(ctx context.Context, token, deviceID string) (nc net.Conn, p codec.Protocol, rest []byte, err error) {
	if c.target.websocket {
		nc, rest, err = c.dialWebSocket(ctx, token, deviceID)
		return nc, codec.WebSocket, rest, err
	}
	nc, err = c.dialNetwork(ctx, "tcp", c.target.address)
	if err == nil && c.target.encrypted {
		nc, err = c.startTLS(ctx, nc)
	}
	return nc, codec.TCP, nil, err
}

func (c *Client) dialNetwork(ctx context.Context, network, address string) (net.Conn, error) {
	if c.cfg.Dial != nil {
		return c.cfg.Dial(ctx, network, address)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func (c *Client) startTLS(ctx context.Context, nc net.Conn) (net.Conn, error) {
	conn := tls.Client(nc, c.tlsConfig())
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return conn, nil
}

func (c *Client) tlsConfig() *tls.Config {
	cfg := &tls.Config{}
	if c.cfg.TLS != nil {
		cfg = c.cfg.TLS.Clone()
	}
	if cfg.ServerName == "" {
		cfg.ServerName = c.target.host
	}
	return cfg
}

func (c *Client) dialWebSocket(ctx context.Context, token, deviceID string) (net.Conn, []byte, error) {
	var refused *Ending
	u := *c.target.url
	header := http.Header{}
	if c.cfg.LoginBy == LoginByHeader {
		header.Set("Authorization", "Bearer "+token)
		query := u.Query()
		// The names under which the gateway looks for what LOGIN would have said.
		for name, value := range map[string]string{
			"device_id": deviceID, "session_id": c.sessionID, "platform": c.cfg.Platform,
		} {
			if value != "" {
				query.Set(name, value)
			}
		}
		u.RawQuery = query.Encode()
	}
	d := ws.Dialer{
		Protocols: []string{codec.SubprotocolProtobuf},
		Header:    ws.HandshakeHeaderHTTP(header),
		NetDial:   c.dialNetwork,
		TLSConfig: c.tlsConfig(),
		OnStatusError: func(status int, _ []byte, response io.Reader) {
			refused = refusal(status, response)
		},
	}
	nc, buffered, _, err := d.Dial(ctx, u.String())
	if refused != nil {
		return nil, nil, refused
	}
	if err != nil {
		return nil, nil, err
	}
	var rest []byte
	if buffered != nil {
		rest, _ = buffered.Peek(buffered.Buffered())
		rest = bytes.Clone(rest)
		ws.PutReader(buffered)
	}
	return nc, rest, nil
}

// refusal reads why an upgrade was refused: the body is "reason: detail". A body that names no reason comes from
// something in between, and only the two statuses about the token itself are final.
func refusal(status int, response io.Reader) *Ending {
	e := &Ending{Err: fmt.Errorf("upgrade refused with HTTP status %d", status)}
	r, err := http.ReadResponse(bufio.NewReader(response), nil)
	if err == nil {
		body, _ := io.ReadAll(io.LimitReader(r.Body, refusalBytes))
		_ = r.Body.Close() // Nothing was written, so nothing can be lost.
		name, detail, _ := strings.Cut(strings.TrimSpace(string(body)), ":")
		if known, ok := reason.Parse(name); ok {
			e.Reason, e.Code = known.String(), known.Code()
			e.Err = fmt.Errorf("upgrade refused with HTTP status %d: %s", status, strings.TrimSpace(detail))
			return e
		}
	}
	switch status {
	case http.StatusUnauthorized:
		e.Reason, e.Code = reason.BadToken.String(), reason.BadToken.Code()
	case http.StatusForbidden:
		e.Reason, e.Code = reason.AuthRefused.String(), reason.AuthRefused.Code()
	}
	return e
}
