package main

import (
	"bytes"
	"fmt"
	mrand "math/rand"
)

// addFraming1 adds cases F: base framing.
func addFraming1() {
	for _, n := range []int{0, 1, 125, 126, 127, 128, 65535, 65536, 300000} {
		p := bytes.Repeat([]byte("*"), n)
		b := make([]byte, n)
		mrand.New(mrand.NewSource(int64(n))).Read(b)
		add(fmt.Sprintf("F.text-%d", n), func(c *conn) outcome { c.send(text(string(p))); return then(c.wantEcho(1, p), c.bye) })
		add(fmt.Sprintf("F.bin-%d", n), func(c *conn) outcome { c.send(bin(b)); return then(c.wantEcho(2, b), c.bye) })
	}
	for _, n := range []int{1, 2, 3, 7, 997} {
		p := bytes.Repeat([]byte("0123456789"), 30)
		add(fmt.Sprintf("F.chop-%d", n), func(c *conn) outcome {
			c.chop(n, text(string(p)), ctl(9, []byte("x")))
			return then(c.wantEcho(1, p), c.alivePong)
		})
	}
	add("F.mask-zero", func(c *conn) outcome {
		c.write([]byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'})
		return c.wantEcho(1, []byte("hi"))
	})
	add("F.many-in-one-segment", func(c *conn) outcome {
		var f []fr
		for i := range 200 {
			f = append(f, text(fmt.Sprint(i)))
		}
		c.send(f...)
		for i := range 200 {
			if o := c.wantEcho(1, []byte(fmt.Sprint(i))); o.r != ok {
				return o
			}
		}
		return c.bye()
	})
	add("F.unmasked", func(c *conn) outcome {
		c.send(fr{fin: true, op: 1, p: []byte("x"), plain: true})
		return c.wantClose(1002)
	})
	add("F.nonmin-16", func(c *conn) outcome {
		c.send(fr{fin: true, op: 1, p: []byte("hello"), form: 16})
		return tolerate(c.wantClose(1002), "got op")
	})
	add("F.nonmin-64", func(c *conn) outcome {
		c.send(fr{fin: true, op: 1, p: []byte("hello"), form: 64})
		return tolerate(c.wantClose(1002), "got op")
	})
	add("F.nonmin-ping", func(c *conn) outcome {
		c.send(fr{fin: true, op: 9, p: []byte("hello"), form: 16})
		return tolerate(c.wantClose(1002), "got op")
	})
	add("F.len-msb", func(c *conn) outcome {
		c.send(fr{fin: true, op: 2, length: 1 << 63, form: 64})
		return c.wantClose(1002, 1009)
	})
}

// addFraming2 adds cases F: base framing.
func addFraming2() {
	for _, e := range []uint{40, 62} {
		add(fmt.Sprintf("F.len-2^%d", e), func(c *conn) outcome {
			c.send(fr{fin: true, op: 2, length: 1 << e, form: 64, p: []byte("0123456789")})
			if o := c.wantClose(1009); o.r != fail || o.why != "connection still open" {
				return o
			}
			return soft("accepted, waits for the bytes")
		})
	}
}

// addPing adds cases P: ping and pong.
func addPing() {
	for _, n := range []int{0, 1, 125} {
		p := bytes.Repeat([]byte{0xfe}, n)
		add(fmt.Sprintf("P.ping-%d", n), func(c *conn) outcome { c.send(ctl(9, p)); return then(c.pong(p), c.bye) })
	}
	add("P.ping-126", func(c *conn) outcome { c.send(ctl(9, make([]byte, 126))); return c.wantClose(1002) })
	add("P.ping-fragmented", func(c *conn) outcome {
		c.send(fr{op: 9, p: []byte("a")}, fr{fin: true, op: 0, p: []byte("b")})
		return c.wantClose(1002)
	})
	add("P.pong-unsolicited", func(c *conn) outcome { c.send(ctl(10, []byte("x")), ctl(10, nil)); return then(c.alive(), c.bye) })
	add("P.pong-126", func(c *conn) outcome { c.send(ctl(10, make([]byte, 126))); return c.wantClose(1002) })
	add("P.ten-pings", func(c *conn) outcome {
		for i := range 10 {
			c.send(ctl(9, fmt.Append(nil, "p", i)))
		}
		last := -1
		for last < 9 { // 5.5.3: a pong for the latest ping is enough
			g, err := c.frame(wait)
			if err != nil || g.op != 10 {
				return bad("%v op %d", err, g.op)
			}
			if _, err := fmt.Sscanf(string(g.p), "p%d", &last); err != nil {
				return bad("pong %q: %v", g.p, err)
			}
		}
		return c.bye()
	})
}

// addReservedBits adds cases R: reserved bits without an extension.
func addReservedBits() {
	for r := byte(1); r < 8; r++ {
		add(fmt.Sprintf("R.data-%d", r), func(c *conn) outcome { c.send(fr{fin: true, rsv: r, op: 1, p: []byte("x")}); return c.wantClose(1002) })
		add(fmt.Sprintf("R.ping-%d", r), func(c *conn) outcome { c.send(fr{fin: true, rsv: r, op: 9}); return c.wantClose(1002) })
	}
}

// addOpcodes adds cases O: reserved opcodes.
func addOpcodes() {
	for _, op := range []byte{3, 4, 5, 6, 7, 11, 12, 13, 14, 15} {
		add(fmt.Sprintf("O.op-%d", op), func(c *conn) outcome {
			c.send(text("first"), fr{fin: true, op: op}, ctl(9, nil))
			return then(c.wantEcho(1, []byte("first")), func() outcome { return c.wantClose(1002) })
		})
	}
}
