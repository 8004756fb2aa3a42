package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode/utf8"
)

type fr struct {
	fin    bool
	rsv    byte
	op     byte
	p      []byte
	form   int // 0 minimal, 7, 16, 64
	plain  bool
	length uint64 // claimed length if > 0
	mask   [4]byte
}

func (f fr) bytes() []byte {
	b := f.op | f.rsv<<4
	if f.fin {
		b |= 0x80
	}
	l := uint64(len(f.p))
	if f.length > 0 {
		l = f.length
	}
	o := []byte{b}
	m := byte(0x80)
	if f.plain {
		m = 0
	}
	form := f.form
	if form == 0 {
		switch {
		case l < 126:
			form = 7
		case l < 1<<16:
			form = 16
		default:
			form = 64
		}
	}
	switch form {
	case 7:
		o = append(o, m|byte(l))
	case 16:
		o = binary.BigEndian.AppendUint16(append(o, m|126), uint16(l))
	default:
		o = binary.BigEndian.AppendUint64(append(o, m|127), l)
	}
	if f.plain {
		return append(o, f.p...)
	}
	mk := f.mask
	if mk == [4]byte{} {
		rand.Read(mk[:])
	}
	o = append(o, mk[:]...)
	for i, x := range f.p {
		o = append(o, x^mk[i&3])
	}
	return o
}

func text(s string) fr                  { return fr{fin: true, op: 1, p: []byte(s)} }
func bin(p []byte) fr                   { return fr{fin: true, op: 2, p: p} }
func ctl(op byte, p []byte) fr          { return fr{fin: true, op: op, p: p} }
func frag(op byte, f bool, s string) fr { return fr{fin: f, op: op, p: []byte(s)} }

func (c *conn) send(fs ...fr) {
	var b []byte
	for _, f := range fs {
		b = append(b, f.bytes()...)
	}
	c.write(b)
}

func (c *conn) chop(n int, fs ...fr) {
	for _, f := range fs {
		b := f.bytes()
		for len(b) > 0 {
			k := min(n, len(b))
			if _, err := c.Write(b[:k]); err != nil {
				return
			}
			b = b[k:]
			time.Sleep(200 * time.Microsecond)
		}
	}
}

type got struct {
	fin bool
	rsv byte
	op  byte
	p   []byte
}

func (c *conn) frame(d time.Duration) (g got, err error) {
	c.readBy(d)
	h := make([]byte, 2)
	if _, err = io.ReadFull(c.r, h); err != nil {
		return
	}
	g.fin, g.rsv, g.op = h[0]&0x80 != 0, h[0]>>4&7, h[0]&15
	if h[1]&0x80 != 0 {
		return g, errors.New("server frame is masked")
	}
	l := uint64(h[1])
	switch l {
	case 126:
		b := make([]byte, 2)
		if _, err = io.ReadFull(c.r, b); err != nil {
			return
		}
		if l = uint64(binary.BigEndian.Uint16(b)); l < 126 {
			return g, errors.New("server used a non-minimal length")
		}
	case 127:
		b := make([]byte, 8)
		if _, err = io.ReadFull(c.r, b); err != nil {
			return
		}
		if l = binary.BigEndian.Uint64(b); l < 1<<16 || l > 1<<30 {
			return g, errors.New("server length")
		}
	}
	g.p = make([]byte, l)
	_, err = io.ReadFull(c.r, g.p)
	return
}

// message reads one data message, control frames go to side.
func (c *conn) message(d time.Duration) (op byte, rsv byte, p []byte, side []got, err error) {
	first := true
	for {
		g, e := c.frame(d)
		if e != nil {
			return op, rsv, p, side, e
		}
		if g.op >= 8 {
			if !g.fin || len(g.p) > 125 {
				return op, rsv, p, side, errors.New("server sent a bad control frame")
			}
			side = append(side, g)
			if g.op == 8 {
				return op, rsv, p, side, errClosed
			}
			continue
		}
		if first != (g.op != 0) {
			return op, rsv, p, side, errors.New("server fragmented wrongly")
		}
		if first {
			op, rsv, first = g.op, g.rsv, false
		} else if g.rsv != 0 {
			return op, rsv, p, side, errors.New("server set RSV on a continuation")
		}
		p = append(p, g.p...)
		if g.fin {
			return
		}
	}
}

var errClosed = errors.New("closed")

func (c *conn) wantEcho(op byte, p []byte) outcome {
	o, rsv, q, side, err := c.message(patience())
	if err != nil {
		return bad("no echo: %v %v", err, desc(side))
	}
	if rsv&4 != 0 && c.ext != "" {
		if q, err = inflate(q, c.dict); err != nil {
			return bad("inflate: %v", err)
		}
		if !strings.Contains(c.ext, "server_no_context_takeover") {
			c.dict = append(c.dict, q...)
			c.dict = c.dict[max(0, len(c.dict)-32768):]
		}
	} else if rsv != 0 {
		return bad("echo with RSV %d", rsv)
	}
	if o != op || !bytes.Equal(p, q) {
		return bad("echo differs: op %d len %d", o, len(q))
	}
	return good
}

func desc(s []got) string {
	var o []string
	for _, g := range s {
		if g.op == 8 && len(g.p) >= 2 {
			o = append(o, fmt.Sprint("close ", binary.BigEndian.Uint16(g.p)))
		} else {
			o = append(o, fmt.Sprint("op", g.op))
		}
	}
	return strings.Join(o, ",")
}

// wantClose: a close frame with one of codes, then EOF. Nothing else (data, pong) may come first.
func (c *conn) wantClose(codes ...int) outcome {
	g, err := c.frame(wait)
	if err != nil {
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			return bad("connection still open")
		}
		return soft("TCP dropped without a close frame: %v", err)
	}
	if g.op != 8 {
		return bad("got op %d instead of close", g.op)
	}
	code := 1005
	if len(g.p) >= 2 {
		code = int(binary.BigEndian.Uint16(g.p))
		if !utf8.Valid(g.p[2:]) {
			return bad("close reason is not UTF-8")
		}
	} else if len(g.p) == 1 {
		return bad("1-byte close")
	}
	o := good
	hit := false
	for _, k := range codes {
		hit = hit || k == code
	}
	if !hit {
		if code == 1005 {
			o = soft("close without code, want %v", codes)
		} else {
			return bad("close %d, want %v", code, codes)
		}
	}
	c.send(ctl(8, g.p[:min(2, len(g.p))]))
	c.readBy(wait)
	if n, err := io.Copy(io.Discard, c.r); err != nil {
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			return bad("TCP not closed after close handshake")
		}
	} else if n > 0 {
		return bad("%d bytes after close frame", n)
	}
	return o
}

// wantGoodbye: we already sent a close; the server echoes one of codes and closes.
func (c *conn) wantGoodbye(codes ...int) outcome { return c.wantClose(codes...) }

func (c *conn) alive() outcome {
	c.send(text("alive?"))
	return c.wantEcho(1, []byte("alive?"))
}

func (c *conn) bye() outcome {
	c.send(ctl(8, []byte{3, 232}))
	return c.wantGoodbye(1000)
}
