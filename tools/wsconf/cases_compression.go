package main

import (
	"bytes"
	"compress/flate"
	"crypto/rand"
	"fmt"
	"strings"
)

// addCompression1 adds cases Z: permessage-deflate.
func addCompression1() {
	for _, n := range []int{0, 1, 100, 65536, 200000} {
		p := bytes.Repeat([]byte("compress me "), n/12+1)[:n]
		addZ(fmt.Sprintf("Z.echo-%d", n), pmd, on(func(c *conn) outcome {
			c.send(fr{fin: true, rsv: 4, op: 1, p: deflate(p)})
			return then(c.wantEcho(1, p), c.bye)
		}))
	}
	addZ("Z.random", pmd, on(func(c *conn) outcome {
		p := make([]byte, 50000)
		rand.Read(p)
		c.send(fr{fin: true, rsv: 4, op: 2, p: deflate(p)})
		return then(c.wantEcho(2, p), c.bye)
	}))
	addZ("Z.uncompressed", pmd, on(func(c *conn) outcome { c.send(text("plain")); return then(c.wantEcho(1, []byte("plain")), c.bye) }))
	addZ("Z.fragments", pmd, on(func(c *conn) outcome {
		p := bytes.Repeat([]byte("abc"), 5000)
		z := deflate(p)
		f := []fr{{rsv: 4, op: 2, p: z[:1]}}
		for i := 1; i < len(z); i++ {
			f = append(f, fr{op: 0, p: z[i : i+1]})
		}
		f = append(f, fr{fin: true, op: 0}, ctl(9, []byte("q")))
		c.send(f...)
		return then(c.wantEcho(2, p), func() outcome { return c.pong([]byte("q")) })
	}))
	addZ("Z.rsv1-continuation", pmd, on(func(c *conn) outcome {
		z := deflate([]byte("hello"))
		c.send(fr{rsv: 4, op: 1, p: z[:2]}, fr{fin: true, rsv: 4, op: 0, p: z[2:]})
		return c.wantClose(1002)
	}))
	addZ("Z.rsv1-ping", pmd, on(func(c *conn) outcome { c.send(fr{fin: true, rsv: 4, op: 9}); return c.wantClose(1002) }))
	addZ("Z.rsv2", pmd, on(func(c *conn) outcome { c.send(fr{fin: true, rsv: 2, op: 1, p: []byte("x")}); return c.wantClose(1002) }))
	addZ("Z.rsv3-ping", pmd, on(func(c *conn) outcome { c.send(fr{fin: true, rsv: 1, op: 9}); return c.wantClose(1002) }))
	addZ("Z.corrupt", pmd, on(func(c *conn) outcome {
		c.send(fr{fin: true, rsv: 4, op: 2, p: []byte{0xff, 0xff, 0xff, 0xff}})
		return c.wantClose(1007, 1002, 1003)
	}))
}

// addCompression2 adds cases Z: permessage-deflate.
func addCompression2() {
	addZ("Z.utf8-bad", pmd, on(func(c *conn) outcome {
		c.send(fr{fin: true, rsv: 4, op: 1, p: deflate([]byte("a\xff"))})
		return c.wantClose(1007)
	}))
	addZ("Z.utf8-ok", pmd, on(func(c *conn) outcome {
		c.send(fr{fin: true, rsv: 4, op: 1, p: deflate([]byte("κόσμε"))})
		return then(c.wantEcho(1, []byte("κόσμε")), c.bye)
	}))
	if *maxMsg > 0 {
		addZ("Z.bomb", pmd, on(func(c *conn) outcome {
			var b bytes.Buffer
			w, _ := flate.NewWriter(&b, 9)
			z := make([]byte, 1<<20)
			for i := int64(0); i <= *maxMsg>>20+2; i++ {
				_, _ = w.Write(z) // into memory
			}
			_ = w.Flush()
			c.send(fr{fin: true, rsv: 4, op: 2, p: b.Bytes()[:b.Len()-4]})
			return c.wantClose(1009)
		}))
	}
	for i, o := range []string{"permessage-deflate", "permessage-deflate; server_no_context_takeover; client_no_context_takeover", "permessage-deflate; server_max_window_bits=9", "permessage-deflate; server_max_window_bits=15; client_max_window_bits=15", "permessage-deflate; server_max_window_bits=10, permessage-deflate"} {
		addZ(fmt.Sprintf("Z.offer-%d", i), o, func(c *conn) outcome {
			if c.ext == "" {
				return soft("declined: %s", o)
			}
			return on(func(c *conn) outcome {
				p := bytes.Repeat([]byte("window "), 9000)
				for range 3 {
					c.send(fr{fin: true, rsv: 4, op: 1, p: deflate(p)})
					if o := c.wantEcho(1, p); o.r != ok {
						return o
					}
				}
				return c.bye()
			})(c)
		})
	}
	for i, o := range []string{"permessage-deflate; server_max_window_bits=7", "permessage-deflate; server_max_window_bits=16", "permessage-deflate; server_max_window_bits", "permessage-deflate; foo", "permessage-deflate; client_no_context_takeover=1", "permessage-deflate; server_no_context_takeover; server_no_context_takeover", "x-unknown", "permessage-deflate; server_max_window_bits=\"0x9\""} {
		addZ(fmt.Sprintf("Z.bad-offer-%d", i), o, func(c *conn) outcome {
			if c.ext != "" {
				return bad("accepted %q for %q", c.ext, o)
			}
			return then(c.alive(), c.bye)
		})
	}
}

// pmd is the offer that clients make.
const pmd = "permessage-deflate; client_max_window_bits"

// on demands that the extension was negotiated.
func on(f func(c *conn) outcome) func(c *conn) outcome {
	return func(c *conn) outcome {
		if !strings.HasPrefix(c.ext, "permessage-deflate") {
			return bad("not negotiated: %q", c.ext)
		}
		if strings.Contains(c.ext, ",") {
			return bad("two answers to the offers: %q", c.ext)
		}
		return f(c)
	}
}
