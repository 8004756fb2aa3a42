package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// addClosing adds cases X: close.
func addClosing() {
	add("X.empty", func(c *conn) outcome {
		c.send(ctl(8, nil))
		return c.wantGoodbye(1000, 1005)
	})
	add("X.one-byte", func(c *conn) outcome { c.send(ctl(8, []byte{3})); return c.wantGoodbye(1002) })
	add("X.reason", func(c *conn) outcome { c.send(ctl(8, []byte("\x03\xe8bye κ"))); return c.wantGoodbye(1000) })
	add("X.reason-123", func(c *conn) outcome {
		c.send(ctl(8, append([]byte{3, 232}, bytes.Repeat([]byte("x"), 123)...)))
		return c.wantGoodbye(1000)
	})
	add("X.reason-124", func(c *conn) outcome {
		c.send(ctl(8, append([]byte{3, 232}, bytes.Repeat([]byte("x"), 124)...)))
		return c.wantGoodbye(1002)
	})
	add("X.reason-utf8", func(c *conn) outcome { c.send(ctl(8, []byte("\x03\xe8\xff"))); return c.wantGoodbye(1007, 1002) })
	add("X.fragmented", func(c *conn) outcome { c.send(fr{op: 8, p: []byte{3, 232}}); return c.wantClose(1002) })
	for _, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999} {
		add(fmt.Sprintf("X.good-%d", code), func(c *conn) outcome {
			c.send(ctl(8, binary.BigEndian.AppendUint16(nil, uint16(code))))
			return c.wantGoodbye(code, 1000)
		})
	}
	for _, code := range []int{0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535} {
		add(fmt.Sprintf("X.bad-%d", code), func(c *conn) outcome {
			c.send(ctl(8, binary.BigEndian.AppendUint16(nil, uint16(code))))
			o := c.wantGoodbye(1002)
			if code >= 5000 { // the RFC is silent above 4999
				o = tolerate(o, "close ")
			}
			return o
		})
	}
	add("X.data-after", func(c *conn) outcome {
		c.send(ctl(8, []byte{3, 232}), text("late"), ctl(9, nil))
		return c.wantGoodbye(1000)
	})
	add("X.twice", func(c *conn) outcome {
		c.send(ctl(8, []byte{3, 232}), ctl(8, []byte{3, 233}))
		return c.wantGoodbye(1000)
	})
	add("X.after-data", func(c *conn) outcome { // echo must not be lost when close follows at once
		c.send(text("last"), ctl(8, []byte{3, 232}))
		return then(c.wantEcho(1, []byte("last")), func() outcome { return c.wantGoodbye(1000) })
	})
	add("X.half-close", func(c *conn) outcome { // FIN without a close frame: server must let go
		if err := c.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			return bad("%v", err)
		}
		c.readBy(wait)
		if _, err := io.Copy(io.Discard, c.r); err != nil {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				return bad("kept half-open")
			}
		}
		return good
	})
}

// flood sends the first n frames of a binary message without bytes; no more than n, since what comes behind a close is read
// for a while and then answered with RST.
func (c *conn) flood(n int) {
	c.send(fr{op: 2})
	empty := fr{op: 0, mask: [4]byte{1}}.bytes()
	for n--; n > 0; {
		k := min(n, 1000)
		if !c.write(bytes.Repeat(empty, k)) {
			return
		}
		n -= k
	}
}

// addLimits adds cases L: limits.
func addLimits() {
	add("L.at-limit", func(c *conn) outcome {
		p := bytes.Repeat([]byte("a"), int(*maxMsg))
		go c.send(bin(p))
		return then(c.wantEcho(2, p), c.bye)
	})
	add("L.over", func(c *conn) outcome { go c.send(bin(make([]byte, *maxMsg+1))); return c.wantClose(1009) })
	add("L.over-claimed", func(c *conn) outcome {
		c.send(fr{fin: true, op: 2, length: uint64(*maxMsg) + 1})
		return c.wantClose(1009)
	})
	add("L.over-fragments", func(c *conn) outcome {
		go func() {
			n := int(*maxMsg/10) + 1
			c.send(fr{op: 2, p: make([]byte, n)})
			for range 12 {
				c.send(fr{op: 0, p: make([]byte, n)})
			}
		}()
		return c.wantClose(1009)
	})
	add("L.empty-fragments", func(c *conn) outcome { // never-ending message of no bytes
		n := *maxFrames + 1
		if *maxFrames == 0 {
			n = 1_000_000
		}
		go c.flood(n)
		o := c.wantClose(1008, 1009)
		if o.r == fail && o.why == "connection still open" {
			return soft("%d empty fragments accepted", n)
		}
		return o
	})
	if *maxFrames > 0 {
		add("L.most-fragments", func(c *conn) outcome {
			go func() {
				c.flood(*maxFrames - 1)
				c.send(frag(0, true, "end"))
			}()
			return then(c.wantEcho(2, []byte("end")), c.bye)
		})
	}
}
