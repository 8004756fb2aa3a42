package main

import (
	"bytes"
	"fmt"
	"strings"
)

// addContinuation adds cases C: continuation.
func addContinuation() {
	add("C.two", func(c *conn) outcome {
		c.send(frag(1, false, "a"), frag(0, true, "b"))
		return then(c.wantEcho(1, []byte("ab")), c.bye)
	})
	add("C.empty", func(c *conn) outcome {
		c.send(frag(1, false, ""), frag(0, false, ""), frag(0, true, ""))
		return then(c.wantEcho(1, nil), c.bye)
	})
	add("C.empty-middle", func(c *conn) outcome {
		c.send(frag(2, false, ""), frag(0, false, "mid"), frag(0, true, ""))
		return then(c.wantEcho(2, []byte("mid")), c.bye)
	})
	add("C.1000", func(c *conn) outcome {
		f := []fr{frag(2, false, "x")}
		for range 998 {
			f = append(f, frag(0, false, "x"))
		}
		c.send(append(f, frag(0, true, "x"))...)
		return then(c.wantEcho(2, bytes.Repeat([]byte("x"), 1000)), c.bye)
	})
	add("C.ping-inside", func(c *conn) outcome {
		c.send(frag(1, false, "a"), ctl(9, []byte("in")))
		if o := c.pong([]byte("in")); o.r != ok {
			return o
		}
		c.send(frag(0, true, "b"))
		return then(c.wantEcho(1, []byte("ab")), c.bye)
	})
	add("C.pong-inside", func(c *conn) outcome {
		c.send(frag(1, false, "a"), ctl(10, []byte("in")), frag(0, true, "b"))
		return then(c.wantEcho(1, []byte("ab")), c.bye)
	})
	add("C.close-inside", func(c *conn) outcome {
		c.send(frag(1, false, "a"), ctl(8, []byte{3, 232}), frag(0, true, "b"))
		return c.wantGoodbye(1000)
	})
	add("C.orphan-fin", func(c *conn) outcome { c.send(frag(0, true, "x"), text("y")); return c.wantClose(1002) })
	add("C.orphan", func(c *conn) outcome { c.send(frag(0, false, "x"), text("y")); return c.wantClose(1002) })
	add("C.orphan-empty", func(c *conn) outcome { c.send(frag(0, true, "")); return c.wantClose(1002) })
	add("C.text-inside", func(c *conn) outcome { c.send(frag(1, false, "a"), text("b")); return c.wantClose(1002) })
	add("C.bin-inside-open", func(c *conn) outcome { c.send(frag(1, false, "a"), frag(2, false, "b")); return c.wantClose(1002) })
	add("C.after-end", func(c *conn) outcome {
		c.send(frag(1, false, "a"), frag(0, true, "b"), frag(0, true, "c"))
		return then(c.wantEcho(1, []byte("ab")), func() outcome { return c.wantClose(1002) })
	})
}

// addUtf8 adds cases U: UTF-8.
func addUtf8() {
	valid := []string{"\u00e9", "\u20ac", "\U00024B62", "\u0000", "\u007f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\ufffd", "\uffff", "\U00010000", "\U0010ffff", "\ufffe", "\U0001fffe", "κόσμε"}
	for i, s := range valid {
		add(fmt.Sprintf("U.ok-%d", i), func(c *conn) outcome { c.send(text(s)); return then(c.wantEcho(1, []byte(s)), c.bye) })
		add(fmt.Sprintf("U.ok-split-%d", i), func(c *conn) outcome {
			f := []fr{frag(1, false, "")}
			for j := range len(s) {
				f = append(f, frag(0, false, s[j:j+1]))
			}
			c.send(append(f, frag(0, true, ""))...)
			return then(c.wantEcho(1, []byte(s)), c.bye)
		})
	}
	invalid := []string{"\x80", "\xbf", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe0\x9f\xbf", "\xf0\x80\x80\xaf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80", "\xed\xbf\xbf", "\xed\xa0\x80\xed\xb0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80", "\xfc\x84\x80\x80\x80\x80", "\xfe", "\xff", "\xc3\x28", "\xe2\x82\x28", "\xf0\x9f\x98\x28", "ok\xffok"}
	for i, s := range invalid {
		add(fmt.Sprintf("U.bad-%d", i), func(c *conn) outcome { c.send(text(s)); return c.wantClose(1007) })
		add(fmt.Sprintf("U.bad-split-%d", i), func(c *conn) outcome {
			f := []fr{frag(1, false, "κ")}
			for j := range len(s) {
				f = append(f, frag(0, false, s[j:j+1]))
			}
			c.send(append(f, frag(0, true, "z"))...)
			return c.wantClose(1007)
		})
	}
	for i, s := range []string{"\xc3", "\xe2\x82", "\xf0\x9f\x98"} {
		add(fmt.Sprintf("U.cut-%d", i), func(c *conn) outcome { c.send(text("a" + s)); return c.wantClose(1007) })
		add(fmt.Sprintf("U.cut-frag-%d", i), func(c *conn) outcome { c.send(frag(1, false, "a"+s), frag(0, true, "")); return c.wantClose(1007) })
	}
	add("U.fail-fast-frame", func(c *conn) outcome { // 1st fragment already impossible, message not ended
		c.send(frag(1, false, "abc\xff"))
		o := c.wantClose(1007)
		if o.r == fail && o.why == "connection still open" {
			return soft("does not fail fast")
		}
		return o
	})
	add("U.fail-fast-chop", func(c *conn) outcome { // inside one frame, the rest never comes
		b := text("abc\xff" + strings.Repeat("z", 1000)).bytes()
		c.write(b[:20])
		o := c.wantClose(1007)
		if o.r == fail && o.why == "connection still open" {
			return soft("does not fail fast")
		}
		return o
	})
	add("U.binary-any", func(c *conn) outcome {
		c.send(bin([]byte("\xff\xfe\x80")))
		return then(c.wantEcho(2, []byte("\xff\xfe\x80")), c.bye)
	})
}
