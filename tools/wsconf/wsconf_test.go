package main

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// says is a server that takes every upgrade, says the same to everybody, and then closes, or not.
func says(t *testing.T, words string, closes bool) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	target = &url.URL{Scheme: "ws", Host: l.Addr().String(), Path: "/"}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c, words, closes)
		}
	}()
}

func serve(c net.Conn, words string, closes bool) {
	defer func() { _ = c.Close() }()
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	h := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	_, _ = fmt.Fprintf(c, "HTTP/1.1 101 \r\nSec-WebSocket-Accept: %s\r\n\r\n%s", base64.StdEncoding.EncodeToString(h[:]), words)
	if closes {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	_, _ = io.Copy(io.Discard, c)
}

// TestVerdicts checks the checker: what a server must not do is found, and nothing else is.
func TestVerdicts(t *testing.T) {
	wait = 10 * time.Second
	echo := func(c *conn) outcome { return c.wantEcho(1, []byte("hi")) }
	refusal := func(c *conn) outcome { return c.wantClose(1002, 1007) }
	for _, c := range []struct {
		name, words string
		closes      bool
		look        func(c *conn) outcome
		want        result
	}{
		{"echo", "\x81\x02hi", true, echo, ok},
		{"echo in fragments, with a ping between", "\x01\x01h\x89\x00\x80\x01i", true, echo, ok},
		{"echo of something else", "\x81\x02ho", true, echo, fail},
		{"echo of another type", "\x82\x02hi", true, echo, fail},
		{"echo with a reserved bit", "\xc1\x02hi", true, echo, fail},
		{"masked echo", "\x81\x82\x00\x00\x00\x00hi", true, echo, fail},
		{"length not minimal", "\x81\x7e\x00\x02hi", true, echo, fail},
		{"half a length", "\x81\x7e\x00", true, echo, fail},
		{"half an echo", "\x81\x02h", true, echo, fail},
		{"continuation of nothing", "\x80\x02hi", true, echo, fail},
		{"ping in fragments", "\x09\x00\x81\x02hi", true, echo, fail},
		{"no echo", "", true, echo, fail},
		{"close", "\x88\x02\x03\xea", true, refusal, ok},
		{"close with another of the codes", "\x88\x02\x03\xef", true, refusal, ok},
		{"close with a code that is not right", "\x88\x02\x03\xe8", true, refusal, fail},
		{"close without a code", "\x88\x00", true, refusal, lenient},
		{"close of one byte", "\x88\x01\x03", true, refusal, fail},
		{"close with a bad text", "\x88\x03\x03\xea\xff", true, refusal, fail},
		{"something before the close", "\x8a\x00\x88\x02\x03\xea", true, refusal, fail},
		{"something behind the close", "\x88\x02\x03\xea\x8a\x00", true, refusal, fail},
		{"no close frame", "", true, refusal, lenient},
		{"TCP not closed", "\x88\x02\x03\xea", false, refusal, fail},
		{"nothing at all", "", false, refusal, fail},
	} {
		t.Run(c.name, func(t *testing.T) {
			says(t, c.words, c.closes)
			client, err := open("")
			if err != nil {
				t.Fatal(err)
			}
			defer client.done()
			if !c.closes {
				was := wait
				wait = 100 * time.Millisecond // it will not come
				defer func() { wait = was }()
			}
			if got := c.look(client); got.r != c.want {
				t.Errorf("verdict %d (%s), want %d", got.r, got.why, c.want)
			}
		})
	}
}
