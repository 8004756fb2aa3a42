package main

import (
	"strings"
	"time"
)

// addHandshake1 adds cases H: opening handshake (RFC 6455 4.2, RFC 9112).
func addHandshake1() {
	addH("H.ok", func() outcome { return handshake(head(k, ""), 101) })
	addH("H.case", func() outcome {
		h := strings.NewReplacer("Upgrade: websocket", "upgrade: WebSocket", "Connection: Upgrade", "CONNECTION: keep-alive, upGrade").Replace(head(k, ""))
		return handshake(h, 101)
	})
	addH("H.chopped", func() outcome {
		c, err := dial()
		if err != nil {
			return bad("%v", err)
		}
		defer c.done()
		for _, b := range []byte(head(k, "")) {
			c.write([]byte{b})
			time.Sleep(100 * time.Microsecond)
		}
		if code, err := c.readHead(); code != 101 {
			return bad("%d %v", code, err)
		}
		return c.alive()
	})
	addH("H.no-key", func() outcome { return handshake(swap(head(k, ""), "Sec-WebSocket-Key: "+k+"\r\n", ""), 400) })
	addH("H.key-short", func() outcome { return handshake(head("AAAA", ""), 400) })
	addH("H.key-not-base64", func() outcome { return handshake(head("!!!!!!!!!!!!!!!!!!!!!!!!", ""), 400) })
	addH("H.key-twice", func() outcome { return handshake(head(k, "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"), 400) })
	addH("H.version-8", func() outcome { return handshake(swap(head(k, ""), "Version: 13", "Version: 8"), 426, 400) })
	addH("H.no-upgrade", func() outcome { return handshake(swap(head(k, ""), "Upgrade: websocket\r\n", ""), 400, 426, 404) })
	addH("H.no-connection", func() outcome { return handshake(swap(head(k, ""), "Connection: Upgrade\r\n", ""), 400, 426) })
	addH("H.post", func() outcome { return handshake(swap(head(k, ""), "GET ", "POST "), 405, 400) })
	addH("H.http10", func() outcome { return handshake(swap(head(k, ""), "HTTP/1.1", "HTTP/1.0"), 505, 400, 426) })
	addH("H.http-1.9", func() outcome {
		return tolerate(handshake(swap(head(k, ""), "HTTP/1.1", "HTTP/1.9"), 505, 400), "status 101")
	})
	addH("H.no-host", func() outcome { return handshake(swap(head(k, ""), "Host: "+target.Host+"\r\n", ""), 400) })
	addH("H.two-hosts", func() outcome { return handshake(head(k, "Host: evil\r\n"), 400) })
	addH("H.body-cl", func() outcome { return handshake(head(k, "Content-Length: 5\r\n")+"hello", 400) })
	addH("H.body-te", func() outcome { return handshake(head(k, "Transfer-Encoding: chunked\r\n")+"0\r\n\r\n", 400, 501) })
	addH("H.cl-and-te", func() outcome {
		return handshake(head(k, "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")+"0\r\n\r\n", 400, 501)
	})
	addH("H.bare-lf", func() outcome {
		return tolerate(handshake(strings.ReplaceAll(head(k, ""), "\r\n", "\n"), 400, 0), "status 101")
	})
	addH("H.bare-cr", func() outcome { return handshake(head(k, "X-A: a\rb: c\r\n"), 400) })
	addH("H.nul", func() outcome { return handshake(head(k, "X-A: a\x00b\r\n"), 400) })
	addH("H.space-colon", func() outcome { return handshake(head(k, "X-A : b\r\n"), 400) })
	addH("H.obs-fold", func() outcome { return tolerate(handshake(head(k, "X-A: b\r\n folded\r\n"), 400), "status 101") })
	addH("H.empty-name", func() outcome { return handshake(head(k, ": b\r\n"), 400) })
	addH("H.garbage", func() outcome { return handshake("\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 hello\r\n\r\n", 400, 0) })
	addH("H.big-header", func() outcome {
		return tolerate(handshake(head(k, "X-A: "+strings.Repeat("a", 128<<10)+"\r\n"), 431, 400, 0), "status 101")
	})
	addH("H.many-headers", func() outcome {
		return tolerate(handshake(head(k, strings.Repeat("X-A: b\r\n", 20000)), 431, 400, 0), "status 101")
	})
}

// addHandshake2 adds cases H: opening handshake (RFC 6455 4.2, RFC 9112).
func addHandshake2() {
	addH("H.pipelined-frame", func() outcome {
		c, err := dial()
		if err != nil {
			return bad("%v", err)
		}
		defer c.done()
		c.write(append([]byte(head(k, "")), text("early").bytes()...))
		code, err := c.readHead()
		if code != 101 {
			return soft("refused: %d %v", code, err)
		}
		if o := c.wantEcho(1, []byte("early")); o.r != ok {
			return bad("bytes after the request are lost")
		}
		return good
	})
}

// k is a good Sec-WebSocket-Key.
const k = "dGhlIHNhbXBsZSBub25jZQ=="
