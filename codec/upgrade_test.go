package codec

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-im/sluice/api/reason"
)

const sampleKey = "dGhlIHNhbXBsZSBub25jZQ==" // RFC 6455, 1.3.

// upgradeRequest is a good request with more header lines.
func upgradeRequest(lines ...string) string {
	return strings.Join(append([]string{
		"GET /ws HTTP/1.1", "Host: example.com", "Upgrade: websocket", "Connection: Upgrade",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + sampleKey,
	}, append(lines, "", "")...), "\r\n")
}

// swapped is a good request in which one thing is different.
func swapped(old, new string) string {
	r := upgradeRequest()
	if !strings.Contains(r, old) {
		panic("no " + old + " in the request")
	}
	return strings.Replace(r, old, new, 1)
}

// parseEveryWay parses a request that arrives whole and byte by byte, and demands the same answer.
func parseEveryWay(t testing.TB, in string, o *UpgradeOptions) (u Upgrade, consumed int, err error) {
	t.Helper()
	u, consumed, err = ParseUpgrade([]byte(in), o)
	for n := range len(in) {
		u2, consumed2, err2 := ParseUpgrade([]byte(in[:n]), o)
		if consumed2 == 0 && err2 == nil {
			continue
		}
		if u2 != u || consumed2 != consumed || !equalUpgradeErrors(err, err2) {
			t.Fatalf("after %d bytes: %+v, %d, %v; whole: %+v, %d, %v", n, u2, consumed2, err2, u, consumed, err)
		}
		break
	}
	return u, consumed, err
}

func equalUpgradeErrors(a, b error) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a.(*UpgradeError) == *b.(*UpgradeError)
}

func TestUpgrade(t *testing.T) {
	o := &UpgradeOptions{Path: "/ws", Origins: []string{"https://chat.example.com", "http://localhost:8080"}, TokenInQuery: true, Deflate: true}
	plain := Upgrade{Protocol: WebSocket}
	copy(plain.key[:], sampleKey)
	with := func(change func(u *Upgrade)) Upgrade {
		u := plain
		change(&u)
		return u
	}
	for _, c := range []struct {
		name, in string
		want     Upgrade
	}{
		{"plain", upgradeRequest(), plain},
		{"other case", strings.NewReplacer("Upgrade: websocket", "upgrade: WebSocket", "Connection: Upgrade", "CONNECTION: keep-alive, upGrade").Replace(upgradeRequest()), plain},
		{"two Connection fields", swapped("Connection: Upgrade", "Connection: keep-alive\r\nConnection:\tUpgrade "), plain},
		{"subprotocol", upgradeRequest("Sec-WebSocket-Protocol: sluice.v1.pb"), with(func(u *Upgrade) { u.Subprotocol = SubprotocolProtobuf })},
		{"JSON", upgradeRequest("Sec-WebSocket-Protocol: sluice.v1.json"), with(func(u *Upgrade) { u.Subprotocol, u.Protocol = SubprotocolJSON, WebSocketJSON })},
		{"the first one wins", upgradeRequest("Sec-WebSocket-Protocol: x, sluice.v1.json", "Sec-WebSocket-Protocol: sluice.v1.pb"), with(func(u *Upgrade) { u.Subprotocol, u.Protocol = SubprotocolJSON, WebSocketJSON })},
		{"none of ours", upgradeRequest("Sec-WebSocket-Protocol: mqtt"), plain},
		{"token of a browser", upgradeRequest("Sec-WebSocket-Protocol: bearer.a.b-c_d, sluice.v1.pb"), with(func(u *Upgrade) { u.Subprotocol, u.Token = SubprotocolProtobuf, "a.b-c_d" })},
		{"token of a program", upgradeRequest("Authorization: bEARER  a.b.c "), with(func(u *Upgrade) { u.Token = "a.b.c" })},
		{"another scheme", upgradeRequest("Authorization: Basic eDp5"), plain},
		{"Authorization goes first", upgradeRequest("Sec-WebSocket-Protocol: bearer.x", "Authorization: Bearer y"), with(func(u *Upgrade) { u.Token = "y" })},
		{"query", swapped("/ws ", "/ws?device_id=d%201&session_id=s+2&platform=web&token=a.b%2Ec&other=%zz&flag "), with(func(u *Upgrade) {
			u.DeviceID, u.SessionID, u.Platform, u.Token = "d 1", "s 2", "web", "a.b.c"
		})},
		{"origin", upgradeRequest("Origin: https://chat.example.com"), with(func(u *Upgrade) { u.Origin = "https://chat.example.com" })},
		{"forwarded", upgradeRequest("X-Forwarded-For: 1.2.3.4, 5.6.7.8", "User-Agent: x/1", "x-forwarded-for: ::1"), with(func(u *Upgrade) {
			u.ForwardedFor, u.UserAgent = "1.2.3.4, 5.6.7.8, ::1", "x/1"
		})},
		{"trace", upgradeRequest("TraceParent: " + aTrace), with(func(u *Upgrade) { u.TraceParent = aTrace })},
		{"trace of a later version", upgradeRequest("traceparent: 01" + aTrace[2:] + "-more"), with(func(u *Upgrade) { u.TraceParent = "01" + aTrace[2:] + "-more" })},
		{"two traces", upgradeRequest("traceparent: "+aTrace, "traceparent: "+aTrace), plain},
		{"trace that is too long", upgradeRequest("traceparent: " + aTrace + "-more"), plain},
		{"trace without an id", upgradeRequest("traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01"), plain},
		{"trace in capitals", upgradeRequest("traceparent: " + strings.ToUpper(aTrace)), plain},
		{"trace that is none", upgradeRequest("traceparent: yes"), plain},
		{"deflate", upgradeRequest("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"), with(func(u *Upgrade) { u.Protocol = WebSocket.WithDeflate(15) })},
		{"deflate with a window", upgradeRequest("Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=9"), with(func(u *Upgrade) { u.Protocol = WebSocket.WithDeflate(9) })},
		{"bad offer", upgradeRequest("Sec-WebSocket-Extensions: permessage-deflate; foo"), plain},
		{"a hundred headers", upgradeRequest(many(95)...), plain},
		{"header values of bytes", upgradeRequest("X-A: caf\xc3\xa9\xff\t!"), plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, consumed, err := parseEveryWay(t, c.in, o)
			if err != nil || consumed != len(c.in) || u != c.want {
				t.Errorf("%+v, %d of %d, %v; want %+v", u, consumed, len(c.in), err, c.want)
			}
			early := c.in + string(wire(text("early")))
			if _, consumed, err := parseEveryWay(t, early, o); err != nil || consumed != len(c.in) {
				t.Errorf("with a frame behind it: %d of %d, %v", consumed, len(c.in), err)
			}
		})
	}
}

// aTrace is the example of W3C Trace Context, 3.2.
const aTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func many(n int) []string {
	lines := make([]string, n-1)
	for i := range lines {
		lines[i] = "X-A: b"
	}
	return lines
}

var refusedUpgrades = []struct {
	name, in string
	want     reason.Reason
}{
	{"no key", swapped("Sec-WebSocket-Key: "+sampleKey+"\r\n", ""), reason.BadRequest},
	{"short key", swapped(sampleKey, "AAAA"), reason.BadRequest},
	{"key that is not base64", swapped(sampleKey, "!!!!!!!!!!!!!!!!!!!!!!!!"), reason.BadRequest},
	{"key of 17 bytes", swapped(sampleKey, "AAAAAAAAAAAAAAAAAAAAAAA="), reason.BadRequest},
	{"key with stray bits", swapped(sampleKey, "dGhlIHNhbXBsZSBub25jZR=="), reason.BadRequest},
	{"two keys", upgradeRequest("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="), reason.BadRequest},
	{"version 8", swapped("Version: 13", "Version: 8"), reason.UpgradeRequired},
	{"two versions", upgradeRequest("Sec-WebSocket-Version: 13"), reason.BadRequest},
	{"no version", swapped("Sec-WebSocket-Version: 13\r\n", ""), reason.UpgradeRequired},
	{"no upgrade", swapped("Upgrade: websocket\r\n", ""), reason.UpgradeRequired},
	{"upgrade to h2c", swapped("Upgrade: websocket", "Upgrade: h2c"), reason.UpgradeRequired},
	{"no connection", swapped("Connection: Upgrade\r\n", ""), reason.UpgradeRequired},
	{"post", swapped("GET ", "POST "), reason.BadRequest},
	{"lower case", swapped("GET ", "get "), reason.BadRequest},
	{"HTTP/1.0", swapped("HTTP/1.1", "HTTP/1.0"), reason.BadRequest},
	{"HTTP/1.9", swapped("HTTP/1.1", "HTTP/1.9"), reason.BadRequest},
	{"HTTP/1.:", swapped("HTTP/1.1", "HTTP/1.:"), reason.BadRequest},
	{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", reason.BadRequest},
	{"no version of HTTP", swapped(" HTTP/1.1", ""), reason.BadRequest},
	{"two spaces", swapped("GET /ws", "GET  /ws"), reason.BadRequest},
	{"space behind the version", swapped("HTTP/1.1", "HTTP/1.1 "), reason.BadRequest},
	{"absolute URI", swapped("/ws", "http://example.com/ws"), reason.BadRequest},
	{"fragment", swapped("/ws", "/ws#x"), reason.BadRequest},
	{"byte in the path", swapped("/ws", "/ws\xff"), reason.BadRequest},
	{"no host", swapped("Host: example.com\r\n", ""), reason.BadRequest},
	{"two hosts", upgradeRequest("Host: evil"), reason.BadRequest},
	{"empty host", swapped("Host: example.com", "Host:"), reason.BadRequest},
	{"host with a path", swapped("Host: example.com", "Host: example.com/x"), reason.BadRequest},
	{"body", upgradeRequest("Content-Length: 5") + "hello", reason.BadRequest},
	{"chunked body", upgradeRequest("Transfer-Encoding: chunked") + "0\r\n\r\n", reason.BadRequest},
	{"both", upgradeRequest("Content-Length: 3", "transfer-encoding: chunked") + "0\r\n\r\n", reason.BadRequest},
	{"bare LF", strings.ReplaceAll(upgradeRequest(), "\r\n", "\n"), reason.BadRequest},
	{"one bare LF", upgradeRequest("X-A: a\nX-B: b"), reason.BadRequest},
	{"bare LF at the end", strings.TrimSuffix(upgradeRequest(), "\r\n") + "\n", reason.BadRequest},
	{"bare CR", upgradeRequest("X-A: a\rb: c"), reason.BadRequest},
	{"NUL", upgradeRequest("X-A: a\x00b"), reason.BadRequest},
	{"ESC", upgradeRequest("X-A: a\x1bb"), reason.BadRequest},
	{"space before the colon", upgradeRequest("X-A : b"), reason.BadRequest},
	{"folded line", upgradeRequest("X-A: b", " folded"), reason.BadRequest},
	{"folded with a tab and a colon", upgradeRequest("X-A: b", "\tfolded: x"), reason.BadRequest},
	{"no name", upgradeRequest(": b"), reason.BadRequest},
	{"no colon", upgradeRequest("X-A"), reason.BadRequest},
	{"TLS", "\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03 hello", reason.BadRequest},
	{"long line", upgradeRequest("X-A: " + strings.Repeat("a", 128<<10)), reason.HeaderTooLarge},
	{"line that does not end", "GET /" + strings.Repeat("a", 8<<10), reason.HeaderTooLarge},
	{"101 headers", upgradeRequest(many(97)...), reason.HeaderTooLarge},
	{"20,000 headers", upgradeRequest(many(20000)...), reason.HeaderTooLarge},
	{"wrong path", swapped("/ws", "/"), reason.NotFound},
	{"path in other case", swapped("/ws", "/WS"), reason.NotFound},
	{"path that begins right", swapped("/ws", "/ws/"), reason.NotFound},
	{"escaped path", swapped("/ws", "/%77s"), reason.NotFound},
	{"wrong origin", upgradeRequest("Origin: https://evil.example"), reason.OriginRefused},
	{"origin null", upgradeRequest("Origin: null"), reason.OriginRefused},
	{"origin that begins right", upgradeRequest("Origin: https://chat.example.com.evil.example"), reason.OriginRefused},
	{"origin with a port", upgradeRequest("Origin: https://chat.example.com:444"), reason.OriginRefused},
	{"origin without TLS", upgradeRequest("Origin: http://chat.example.com"), reason.OriginRefused},
	{"empty origin", upgradeRequest("Origin:"), reason.OriginRefused},
	{"two origins", upgradeRequest("Origin: https://chat.example.com", "Origin: https://evil.example"), reason.BadRequest},
	{"two Authorizations", upgradeRequest("Authorization: Bearer a", "Authorization: Bearer b"), reason.BadRequest},
	{"two bearer items", upgradeRequest("Sec-WebSocket-Protocol: bearer.a, bearer.b"), reason.BadRequest},
	{"subprotocol with a slash", upgradeRequest("Sec-WebSocket-Protocol: a/b"), reason.BadRequest},
	{"token in the URL", swapped("/ws", "/ws?token=x"), reason.BadToken},
	{"parameter twice", swapped("/ws", "/ws?device_id=a&device_id=b"), reason.BadRequest},
	{"bad escape", swapped("/ws", "/ws?device_id=%4"), reason.BadRequest},
	{"bad hex", swapped("/ws", "/ws?device_id=%4g"), reason.BadRequest},
}

func TestUpgradeRefused(t *testing.T) {
	o := &UpgradeOptions{Path: "/ws", Origins: []string{"https://chat.example.com"}}
	for _, c := range refusedUpgrades {
		t.Run(c.name, func(t *testing.T) {
			_, consumed, err := parseEveryWay(t, c.in, o)
			refused := (*UpgradeError)(nil)
			if !errors.As(err, &refused) || refused.Reason != c.want || consumed != 0 {
				t.Fatalf("consumed %d, %v; want %v", consumed, err, c.want)
			}
			checkRefusal(t, err, c.want)
		})
	}
}

// checkRefusal reads the answer as an HTTP client does.
func checkRefusal(t testing.TB, err error, want reason.Reason) {
	t.Helper()
	answer := AppendUpgradeError(nil, err)
	resp, readErr := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if readErr != nil {
		t.Fatalf("%q: %v", answer, readErr)
	}
	defer func() { _ = resp.Body.Close() }()
	var body bytes.Buffer
	if n, err := body.ReadFrom(resp.Body); err != nil || n != resp.ContentLength || !strings.HasPrefix(body.String(), want.String()) {
		t.Errorf("body %q, %v", body.String(), err)
	}
	if resp.StatusCode != want.Status() || !resp.Close {
		t.Errorf("status %d, close %v", resp.StatusCode, resp.Close)
	}
	switch resp.StatusCode {
	case http.StatusUpgradeRequired:
		if resp.Header.Get("Sec-WebSocket-Version") != "13" || resp.Header.Get("Upgrade") != "websocket" {
			t.Errorf("426 with %v", resp.Header)
		}
	case http.StatusUnauthorized:
		if resp.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("401 with %v", resp.Header)
		}
	}
}

// The gateway refuses upgrades too, with reasons of its own.
func TestUpgradeErrorOfTheGateway(t *testing.T) {
	for _, r := range reason.All() {
		if r.Status() != 0 {
			checkRefusal(t, &UpgradeError{Reason: r}, r)
		}
	}
	for _, err := range []error{errForeign{}, &UpgradeError{Reason: reason.Gap}} {
		if answer := string(AppendUpgradeError(nil, err)); !strings.HasPrefix(answer, "HTTP/1.1 500 ") || strings.Contains(answer, "foreign") {
			t.Errorf("%v: %q", err, answer)
		}
	}
}

func TestUpgradeOptions(t *testing.T) {
	for _, c := range []struct {
		name, in string
		o        UpgradeOptions
		want     Protocol
	}{
		{"any path, any origin", swapped("/ws", "/x") + "", UpgradeOptions{}, WebSocket},
		{"any origin", upgradeRequest("Origin: https://evil.example"), UpgradeOptions{}, WebSocket},
		{"echo", upgradeRequest("Sec-WebSocket-Protocol: sluice.v1.json"), UpgradeOptions{Echo: true}, WebSocketEcho},
		{"echo with deflate", upgradeRequest("Sec-WebSocket-Extensions: permessage-deflate"), UpgradeOptions{Echo: true, Deflate: true}, WebSocketEcho.WithDeflate(15)},
		{"deflate not offered", upgradeRequest(), UpgradeOptions{Deflate: true}, WebSocket},
		{"deflate off", upgradeRequest("Sec-WebSocket-Extensions: permessage-deflate"), UpgradeOptions{}, WebSocket},
		{"JSON with deflate", upgradeRequest("Sec-WebSocket-Protocol: sluice.v1.json", "Sec-WebSocket-Extensions: permessage-deflate"), UpgradeOptions{Deflate: true}, WebSocketJSON.WithDeflate(15)},
	} {
		u, _, err := ParseUpgrade([]byte(c.in), &c.o)
		if err != nil || u.Protocol != c.want {
			t.Errorf("%s: %v, %v", c.name, u.Protocol, err)
		}
	}
	short := &UpgradeOptions{HeaderBytes: len(upgradeRequest())}
	if _, n, err := ParseUpgrade([]byte(upgradeRequest()), short); err != nil || n != short.HeaderBytes {
		t.Errorf("a request as long as the limit: %d, %v", n, err)
	}
	short.HeaderBytes--
	if _, _, err := ParseUpgrade([]byte(upgradeRequest()), short); ReasonOf(err) != reason.HeaderTooLarge {
		t.Errorf("a request one byte over the limit: %v", err)
	}
}

func TestUpgradeResponse(t *testing.T) {
	for _, c := range []struct {
		lines           []string
		subprotocol, ex string
	}{
		{nil, "", ""},
		{[]string{"Sec-WebSocket-Protocol: bearer.secret, sluice.v1.json"}, "sluice.v1.json", ""},
		{[]string{"Sec-WebSocket-Extensions: permessage-deflate"}, "", "permessage-deflate; server_no_context_takeover; client_no_context_takeover"},
		{[]string{"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=10, permessage-deflate"}, "", "permessage-deflate; server_no_context_takeover; client_no_context_takeover; server_max_window_bits=10"},
	} {
		u, _, err := ParseUpgrade([]byte(upgradeRequest(c.lines...)), &UpgradeOptions{Deflate: true})
		if err != nil {
			t.Fatal(err)
		}
		answer := AppendUpgradeResponse(nil, &u)
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
		if err != nil {
			t.Fatalf("%q: %v", answer, err)
		}
		_ = resp.Body.Close()
		h := resp.Header
		if resp.StatusCode != http.StatusSwitchingProtocols || h.Get("Upgrade") != "websocket" || h.Get("Connection") != "Upgrade" ||
			h.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" { // RFC 6455, 1.3.
			t.Errorf("%q", answer)
		}
		if h.Get("Sec-WebSocket-Protocol") != c.subprotocol || h.Get("Sec-WebSocket-Extensions") != c.ex || strings.Contains(string(answer), "secret") {
			t.Errorf("%q", answer)
		}
	}
}
