package main

import (
	"bytes"
	"errors"
	"net"
	"strings"
)

type tcase struct {
	id  string
	ext string
	run func(c *conn) outcome // c == nil for handshake cases
	hs  bool
}

var cases []tcase

func add(id string, f func(c *conn) outcome) { cases = append(cases, tcase{id: id, run: f}) }
func addH(id string, f func() outcome) {
	cases = append(cases, tcase{id: id, hs: true, run: func(*conn) outcome { return f() }})
}
func addZ(id, ext string, f func(c *conn) outcome) {
	cases = append(cases, tcase{id: id, ext: "Sec-WebSocket-Extensions: " + ext + "\r\n", run: f})
}

// raw handshake: accept is the list of status codes that are right; 0 = dropped without an answer
func handshake(req string, right ...int) outcome {
	c, err := dial()
	if err != nil {
		return bad("%v", err)
	}
	defer c.done()
	c.write([]byte(req))
	code, err := c.readHead()
	for _, r := range right {
		if r == code && (err == nil || r == 0) {
			return good
		}
	}
	if err != nil {
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			return bad("no answer, connection kept")
		}
		return soft("dropped without an answer, want %v", right)
	}
	if code >= 400 && right[0] >= 400 {
		return soft("status %d, want %v", code, right)
	}
	return bad("status %d, want %v", code, right)
}

// tolerate: a FAIL whose reason matches becomes LENIENT (the RFC permits it, a gateway should not do it)
func tolerate(o outcome, why string) outcome {
	if o.r == fail && strings.HasPrefix(o.why, why) {
		o.r = lenient
	}
	return o
}

func swap(h, old, new string) string { return strings.Replace(h, old, new, 1) }

func then(o outcome, f func() outcome) outcome {
	if o.r == fail {
		return o
	}
	if p := f(); p.r > o.r {
		return p
	}
	return o
}

func (c *conn) pong(p []byte) outcome {
	g, err := c.frame(wait)
	if err != nil {
		return bad("no pong: %v", err)
	}
	if g.op != 10 || !bytes.Equal(g.p, p) {
		return bad("want pong, got op %d len %d", g.op, len(g.p))
	}
	return good
}

func (c *conn) alivePong() outcome { return then(c.pong([]byte("x")), c.bye) }

// build makes the list of cases.
func build() {
	addHandshake1()
	addHandshake2()
	addFraming1()
	addFraming2()
	addPing()
	addReservedBits()
	addOpcodes()
	addContinuation()
	addUtf8()
	addClosing()
	if *maxMsg > 0 {
		addLimits()
	}
	add("Z.rsv1-not-offered", func(c *conn) outcome {
		c.send(fr{fin: true, rsv: 4, op: 1, p: deflate([]byte("x"))})
		return c.wantClose(1002)
	})
	if *doFlate {
		addCompression1()
		addCompression2()
	}
}
