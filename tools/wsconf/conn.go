package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

func key() string {
	b := make([]byte, 16)
	rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

func head(k, extra string) string {
	p := target.RequestURI()
	return "GET " + p + " HTTP/1.1\r\nHost: " + target.Host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + k + "\r\n" + extra + "\r\n"
}

func dial() (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", target.Host)
	if err != nil {
		return nil, err
	}
	if target.Scheme == "wss" {
		secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, err
		}
		c = secure
	}
	return &conn{Conn: c, r: bufio.NewReaderSize(c, 64<<10)}, nil
}

// done closes the connection; nothing is expected of it any more.
func (c *conn) done() { _ = c.Close() }

// readBy bounds the reading. A deadline cannot be set only on a connection that is closed, and reading says that too.
func (c *conn) readBy(d time.Duration) { _ = c.SetReadDeadline(time.Now().Add(d)) }

// write reports whether b could be sent. That the server has closed early is no failure: what it says counts.
func (c *conn) write(b []byte) bool {
	_ = c.SetWriteDeadline(time.Now().Add(patience()))
	_, err := c.Write(b)
	return err == nil
}

// patience is for what takes a busy machine longer than an answer.
func patience() time.Duration { return max(wait, 10*time.Second) }

func (c *conn) readHead() (int, error) {
	c.readBy(wait)
	var b strings.Builder
	for {
		l, err := c.r.ReadString('\n')
		b.WriteString(l)
		if err != nil {
			return 0, err
		}
		if k, v, f := strings.Cut(l, ":"); f && strings.EqualFold(k, "Sec-WebSocket-Extensions") {
			c.ext += strings.TrimSpace(v)
		}
		if l == "\r\n" {
			break
		}
	}
	c.resp = b.String()
	var code int
	_, err := fmt.Sscanf(c.resp, "HTTP/1.1 %d", &code)
	return code, err
}

func open(extra string) (*conn, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	k := key()
	c.write([]byte(head(k, extra)))
	code, err := c.readHead()
	if err != nil {
		c.done()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if code != 101 {
		c.done()
		return nil, fmt.Errorf("handshake: status %d", code)
	}
	h := sha1.Sum([]byte(k + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if !strings.Contains(c.resp, base64.StdEncoding.EncodeToString(h[:])) {
		c.done()
		return nil, errors.New("bad Sec-WebSocket-Accept")
	}
	return c, nil
}
