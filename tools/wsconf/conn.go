package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
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
	c, err := net.DialTimeout("tcp", target.Host, wait)
	if err != nil {
		return nil, err
	}
	if target.Scheme == "wss" {
		secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		secure.SetDeadline(time.Now().Add(wait))
		if err := secure.Handshake(); err != nil {
			c.Close()
			return nil, err
		}
		secure.SetDeadline(time.Time{})
		c = secure
	}
	return &conn{Conn: c, r: bufio.NewReaderSize(c, 64<<10)}, nil
}

func (c *conn) readHead() (int, error) {
	c.SetReadDeadline(time.Now().Add(wait))
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
	fmt.Sscanf(c.resp, "HTTP/1.1 %d", &code)
	return code, nil
}

func open(extra string) (*conn, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	k := key()
	io.WriteString(c, head(k, extra))
	code, err := c.readHead()
	if err != nil || code != 101 {
		c.Close()
		return nil, fmt.Errorf("handshake: %d %v", code, err)
	}
	h := sha1.Sum([]byte(k + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if !strings.Contains(c.resp, base64.StdEncoding.EncodeToString(h[:])) {
		c.Close()
		return nil, errors.New("bad Sec-WebSocket-Accept")
	}
	return c, nil
}
