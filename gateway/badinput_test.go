package gateway

import (
	"bytes"
	"compress/flate"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
)

// badAllocMax bounds what the whole process may allocate while one bad input is refused, its sender and the neighbour's
// message included. A tenth of what the worst of the inputs would come to if it were taken at its word. netpoll reads on
// while the handler waits for a processor, into blocks that it doubles up to 8 MiB.
var badAllocMax = map[string]uint64{engineOneshot: 6 << 20, engineNetpoll: 24 << 20}

// bad is an input that must be refused.
type bad struct {
	name  string
	bytes []byte
	// says is what the client is told: the beginning of the response, or what wire.next gives; empty = only the end.
	says []string
	// why is counted.
	why reason.Reason
}

// masked is a frame as a client sends it: first byte, payload, and the length field, 0 = as it should be.
func masked(first byte, payload []byte, length ...byte) []byte {
	f := []byte{first}
	switch n := len(payload); {
	case len(length) > 0:
		f = append(f, length...)
		f[1] |= 0x80
	case n < 126:
		f = append(f, 0x80|byte(n))
	default:
		f = binary.BigEndian.AppendUint16(append(f, 0x80|126), uint16(n))
	}
	f = append(f, 1, 2, 3, 4)
	for i, b := range payload {
		f = append(f, b^byte(i%4+1))
	}
	return f
}

// long is a 64-bit length field.
func long(n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{127}, n) }

// deflated is a message as permessage-deflate has it.
func deflated(t testing.TB, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(p)
	_ = w.Flush()
	return b.Bytes()[:b.Len()-4]
}

// badFrames are inputs of a logged-in client on WebSocket.
func badFrames(t testing.TB) []bad {
	const protocolError, badCompression = "CLOSE 1002 protocol_error", "CLOSE 1007 bad_compression"
	half := make([]byte, 40<<10)
	return []bad{
		{"reserved bit", masked(0xA2, nil), []string{protocolError}, reason.ProtocolError},
		{"reserved bit beside that of compression", masked(0xE2, nil), []string{protocolError}, reason.ProtocolError},
		{"bit of compression on a ping", masked(0xC9, nil), []string{protocolError}, reason.ProtocolError},
		{"bit of compression on a continuation", append(masked(0x42, []byte{0}), masked(0xC0, nil)...), []string{protocolError}, reason.ProtocolError},
		{"reserved opcode", masked(0x83, nil), []string{protocolError}, reason.ProtocolError},
		{"reserved control opcode", masked(0x8B, nil), []string{protocolError}, reason.ProtocolError},
		{"not masked", []byte{0x82, 1, 0}, []string{protocolError}, reason.ProtocolError},
		{"length not minimal", masked(0x82, nil, 126, 0, 5), []string{protocolError}, reason.ProtocolError},
		{"long length not minimal", masked(0x82, nil, long(65535)...), []string{protocolError}, reason.ProtocolError},
		{"length with the highest bit", masked(0x82, nil, long(1<<63)...), []string{protocolError}, reason.ProtocolError},
		{"largest length", masked(0x82, nil, long(math.MaxInt64)...), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig},
		{"length of 2^62", masked(0x82, nil, long(1<<62)...), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig},
		{"largest length behind a fragment", append(masked(0x02, []byte("x")), masked(0x80, nil, long(math.MaxInt64)...)...), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig},
		{"one byte too long", masked(0x82, nil, long(65537)...), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig},
		{"one byte too long in fragments", append(masked(0x02, half[:32<<10]), masked(0x80, half[:32<<10+1])...), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig},
		{"too long in fragments", append(masked(0x02, half), masked(0x80, half)...), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig},
		{"too many fragments", append(masked(0x02, nil), bytes.Repeat(masked(0x00, nil), 1024)...), []string{"CLOSE 1008 too_many_fragments"}, reason.TooManyFragments},
		{"ping in fragments", masked(0x09, nil), []string{protocolError}, reason.ProtocolError},
		{"ping too long", masked(0x89, make([]byte, 126)), []string{protocolError}, reason.ProtocolError},
		{"ping with a long length", masked(0x89, nil, long(5)...), []string{protocolError}, reason.ProtocolError},
		{"pong too long", masked(0x8A, make([]byte, 126)), []string{protocolError}, reason.ProtocolError},
		{"close in fragments", masked(0x08, []byte{3, 232}), []string{protocolError}, reason.ProtocolError},
		{"close too long", masked(0x88, append([]byte{3, 232}, make([]byte, 124)...)), []string{protocolError}, reason.ProtocolError},
		{"continuation of nothing", masked(0x80, nil), []string{protocolError}, reason.ProtocolError},
		{"message inside of a message", append(masked(0x02, nil), masked(0x82, nil)...), []string{protocolError}, reason.ProtocolError},
		{"a second request", []byte("GET /ws HTTP/1.1\r\nHost: gw\r\n\r\n"), []string{protocolError}, reason.ProtocolError},
		{"text where there is none", masked(0x81, []byte("{}")), []string{"CLOSE 1003 unsupported_data"}, reason.UnsupportedData},
		{"close of one byte", masked(0x88, []byte{3}), []string{protocolError}, reason.ProtocolError},
		{"close with a bad code", masked(0x88, []byte{3, 237}), []string{protocolError}, reason.ProtocolError},
		{"close with bad text", masked(0x88, []byte{3, 232, 0xff}), []string{"CLOSE 1007 invalid_utf8"}, reason.InvalidUTF8},
		{"compressed garbage", masked(0xC2, []byte{0xff, 0xff, 0xff, 0xff}), []string{badCompression}, reason.BadCompression},
		{"compressed data with a rest", masked(0xC2, append(deflated(t, nil), 1, 0, 0, 0xff, 0xff, 'x')), []string{badCompression}, reason.BadCompression},
		{"bomb", masked(0xC2, deflated(t, make([]byte, 60<<20))), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig},
	}
}

// badTexts are inputs of a logged-in client in the JSON subprotocol.
func badTexts(t testing.TB) []bad {
	notUTF8 := []string{"CLOSE 1007 invalid_utf8"}
	return []bad{
		{"text that is not UTF-8", masked(0x81, []byte("\"\xff\"")), notUTF8, reason.InvalidUTF8},
		{"text that ends in a character", masked(0x81, []byte("\xe2\x82")), notUTF8, reason.InvalidUTF8},
		{"text that cannot become UTF-8", masked(0x81, []byte("\xed\xa0"+strings.Repeat("a", 1000)))[:20], notUTF8, reason.InvalidUTF8},
		{"fragment that cannot become UTF-8", append(masked(0x01, []byte("\xf0")), masked(0x00, []byte("\x80"))...), notUTF8, reason.InvalidUTF8},
		{"compressed text that is not UTF-8", masked(0xC1, deflated(t, []byte("a\xff"))), notUTF8, reason.InvalidUTF8},
		{"bytes where there are none", masked(0x82, []byte("{}")), []string{"CLOSE 1003 unsupported_data"}, reason.UnsupportedData},
	}
}

// badRequests are inputs instead of an upgrade.
func badRequests() []bad {
	upgrade := func(line, headers string) []byte {
		return []byte(line + "\r\nHost: gw\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + headers + "\r\n")
	}
	const get = "GET /ws HTTP/1.1"
	return []bad{
		{"another path", upgrade("GET /admin HTTP/1.1", ""), []string{"HTTP/1.1 404 "}, reason.NotFound},
		{"no upgrade", []byte("GET /ws HTTP/1.1\r\nHost: gw\r\n\r\n"), []string{"HTTP/1.1 426 ", "Upgrade: websocket", "ws://"}, reason.UpgradeRequired},
		{"another version", []byte(strings.Replace(string(upgrade(get, "")), "13", "8", 1)), []string{"HTTP/1.1 426 ", "Sec-WebSocket-Version: 13"}, reason.UpgradeRequired},
		{"another origin", upgrade(get, "Origin: https://evil.example\r\n"), []string{"HTTP/1.1 403 "}, reason.OriginRefused},
		{"origin null", upgrade(get, "Origin: null\r\n"), []string{"HTTP/1.1 403 "}, reason.OriginRefused},
		{"header of 1 MiB", upgrade(get, "X-A: "+strings.Repeat("a", 1<<20)+"\r\n"), []string{"HTTP/1.1 431 "}, reason.HeaderTooLarge},
		{"20000 headers", upgrade(get, strings.Repeat("X-A: b\r\n", 20000)), []string{"HTTP/1.1 431 "}, reason.HeaderTooLarge},
		{"a body", upgrade(get, "Content-Length: 5\r\n"), []string{"HTTP/1.1 400 "}, reason.BadRequest},
		{"TLS", clientHello(), []string{"HTTP/1.1 400 "}, reason.BadRequest},
	}
}

// badStreams are inputs on TCP, before login; the error is a command there.
func badStreams() []bad {
	return []bad{
		{"length 0", []byte{0, 0, 0, 0}, []string{"ERROR protocol_error 1002"}, reason.ProtocolError},
		{"largest length", []byte{255, 255, 255, 255}, []string{"ERROR frame_too_big 1009"}, reason.FrameTooBig},
		{"more than a login", []byte{0, 0, 0x40, 0}, []string{"ERROR frame_too_big 1009"}, reason.FrameTooBig},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), []string{"ERROR frame_too_big 1009"}, reason.FrameTooBig},
		{"TLS", clientHello(), []string{"ERROR frame_too_big 1009"}, reason.FrameTooBig},
		{"garbage in a frame", []byte{0, 0, 0, 3, 0xff, 0xff, 0xff}, []string{"ERROR not_logged_in 4007"}, reason.NotLoggedIn},
	}
}

// badLater are inputs of a logged-in client on TCP.
func badLater() []bad {
	return []bad{
		{"length 0", []byte{0, 0, 0, 0}, []string{"ERROR protocol_error 1002"}, reason.ProtocolError},
		{"one byte too long", []byte{0, 1, 0, 1}, []string{"ERROR frame_too_big 1009"}, reason.FrameTooBig},
		{"largest length", []byte{255, 255, 255, 255}, []string{"ERROR frame_too_big 1009"}, reason.FrameTooBig},
	}
}

// clientHello is what a TLS client sends first.
func clientHello() []byte {
	client, server := net.Pipe()
	defer func() { _, _ = client.Close(), server.Close() }()
	go func() { _ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	b := make([]byte, 4096)
	n, _ := server.Read(b)
	return b[:n]
}

// canary is a client who must not notice anything.
type canary struct {
	w *wire
	n int
}

func (n *canary) works() {
	n.w.t.Helper()
	n.n++
	n.w.up(fmt.Sprint("n", n.n), "bob")
	n.w.want(fmt.Sprintf("MESSAGEACK n%d ACK_OK", n.n))
}

// ends is how many connections have ended for a reason, as the metrics have it.
func (r *running) ends(t *testing.T, why reason.Reason) int {
	t.Helper()
	return int(r.metric(t, "sluice_connections_closed_total", why.String()))
}

// refuses sends a bad input and checks what every refusal has to keep: the answer, the end, the counter, the memory, the
// neighbour.
func (r *running) refuses(t *testing.T, b bad, w *wire, near *canary) {
	t.Helper()
	var before, after runtime.MemStats
	counted := r.ends(t, b.why)
	runtime.ReadMemStats(&before)
	go func() { // it may be closed before it has sent all
		_ = w.conn.SetWriteDeadline(time.Now().Add(deadline))
		_, _ = w.conn.Write(b.bytes)
	}()
	if len(b.says) > 0 && strings.HasPrefix(b.says[0], "HTTP/") {
		_ = w.conn.SetReadDeadline(time.Now().Add(deadline))
		answer, _ := io.ReadAll(w.conn) // a reset behind the answer is no failure: what was sent on had to go somewhere
		for _, part := range b.says {
			if !strings.Contains(string(answer), part) {
				t.Errorf("answered %.300q, without %q", answer, part)
			}
		}
	} else {
		w.want(b.says...)
		if end := w.next(); end != "EOF" && end != "RST" {
			t.Errorf("it goes on: %s", end)
		}
	}
	_ = w.conn.Close() // or the gateway would linger
	eventually(t, "the reason is counted", func() bool { return r.ends(t, b.why) == counted+1 })
	near.works()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > badAllocMax[r.g.cfg.Engine.Name] {
		t.Errorf("%d bytes were allocated", n)
	}
}

// badWays are the ways to a gateway that takes whatever a listener can take.
var badWays = []way{
	{name: "oneshot", windowBits: 15, config: choosy},
	{name: "netpoll", windowBits: 15, config: func(t testing.TB, c *Config) {
		choosy(t, c)
		c.Engine.Name = engineNetpoll
	}},
	{name: "tls", windowBits: 15, open: encrypt(&tls.Config{InsecureSkipVerify: true}), config: func(t testing.TB, c *Config) {
		choosy(t, c)
		encrypted(t, c)
	}},
	{name: "netpoll tls", windowBits: 15, open: encrypt(&tls.Config{InsecureSkipVerify: true}), config: func(t testing.TB, c *Config) {
		choosy(t, c)
		encrypted(t, c)
		c.Engine.Name = engineNetpoll
	}},
}

// choosy compresses, knows where browsers may come from, and has no limits that a test would meet.
func choosy(t testing.TB, c *Config) {
	compressed(t, c)
	c.Listeners[0].Origins = []string{"https://good.example"}
	c.Limits.Accept.PerSecond = 0
	c.Limits.Uplink.MessagesBurst = 1 << 20
}

// TestBadInput sends everything that must be refused to a gateway on real sockets.
func TestBadInput(t *testing.T) {
	for _, w := range badWays {
		t.Run(w.name, func(t *testing.T) { testBadInput(t, w) })
	}
}

func testBadInput(t *testing.T, w way) {
	r := w.run(t, startLogic(t, &logic{}), patient)
	near := &canary{w: r.dial(t, protocolTCP, "near", "phone")}
	for i, b := range badFrames(t) {
		t.Run("frame/"+b.name, func(t *testing.T) {
			r.refuses(t, b, r.dial(t, protocolWS, fmt.Sprint("user", i), "phone"), near)
		})
	}
	for _, b := range badTexts(t) {
		t.Run("text/"+b.name, func(t *testing.T) { r.refuses(t, b, r.websocket(t, codec.WebSocketJSON, "bearer=json"), near) })
	}
	for _, b := range badRequests() {
		t.Run("request/"+b.name, func(t *testing.T) { r.refuses(t, b, r.connect(t, protocolWS), near) })
	}
	for _, b := range badStreams() {
		t.Run("stream/"+b.name, func(t *testing.T) { r.refuses(t, b, r.connect(t, protocolTCP), near) })
	}
	for _, b := range badLater() {
		t.Run("stream after login/"+b.name, func(t *testing.T) { r.refuses(t, b, r.dial(t, protocolTCP, "far", "phone"), near) })
	}
	t.Run("bomb before login", func(t *testing.T) {
		w := r.websocket(t, codec.WebSocket)
		login := codec.AppendCommand(nil, clientv1.CommandType_LOGIN, 0, &clientv1.Login{Token: strings.Repeat("a", 13<<10)})
		r.refuses(t, bad{"", masked(0xC2, deflated(t, login)), []string{"CLOSE 1009 frame_too_big"}, reason.FrameTooBig}, w, near)
	})
	// Whoever does not say where it comes from is no browser.
	for _, words := range [][]string{{"bearer=a"}, {"bearer=b", "origin=https://good.example"}} {
		_ = r.websocket(t, codec.WebSocket, words...).conn.Close()
	}
	eventually(t, "only the neighbour is left", func() bool { return r.g.gauges.open() == 1 })
}

// websocket connects and upgrades, with compression; words are those of upgradeRequest.
func (r *running) websocket(t testing.TB, proto codec.Protocol, words ...string) *wire {
	t.Helper()
	w := r.connect(t, protocolWS)
	w.proto = proto.WithDeflate(15)
	w.stream = codec.NewClientStream(w.proto)
	w.send(upgradeRequest(proto, append(words, "deflate=15")))
	if status := w.http(); status != "101" {
		t.Fatalf("the upgrade was answered %s", status)
	}
	return w
}
