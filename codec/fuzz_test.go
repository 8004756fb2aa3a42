package codec

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"google.golang.org/protobuf/proto"
)

// fuzzLimits are small, so that a mutation can reach them.
var fuzzLimits = &Limits{FrameBytes: 300, Fragments: 5}

func FuzzTCP(f *testing.F) {
	f.Add(tcpFrame(3, "abc"), uint64(1))
	f.Add(append(tcpFrame(1, "a"), tcpFrame(300, strings.Repeat("x", 300))...), uint64(2))
	f.Add(tcpFrame(301, ""), uint64(3))
	f.Add(tcpFrame(0, "x"), uint64(4))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		everyWay(t, NewStream(TCP), in, fuzzLimits, seed)
		reframe(t, TCP, in)
	})
}

// reframe demands that what a stream yields, framed again by a client and by a server, is yielded again.
func reframe(t *testing.T, p Protocol, in []byte) {
	t.Helper()
	s := NewStream(p)
	for buf := bytes.Clone(in); ; {
		frame, consumed, err := s.Next(buf, fuzzLimits)
		if err != nil || frame.Kind == KindNone {
			return
		}
		buf = buf[consumed:]
		if frame.Kind != KindCommand {
			continue
		}
		up, err := AppendClientFrame(p, nil, frame.Payload, [4]byte{1, 2, 3, 4})
		if err != nil {
			t.Fatalf("%q cannot be framed: %v", frame.Payload, err)
		}
		server, client := NewStream(p), NewClientStream(p)
		if again, n, err := server.Next(up, testLimits); err != nil || n != len(up) || !bytes.Equal(again.Payload, frame.Payload) {
			t.Fatalf("%q from a client comes back as %q, %v", frame.Payload, again.Payload, err)
		}
		down, err := Append(p, nil, frame.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if again, n, err := client.Next(down, testLimits); err != nil || n != len(down) || !bytes.Equal(again.Payload, frame.Payload) {
			t.Fatalf("%q from a server comes back as %q, %v", frame.Payload, again.Payload, err)
		}
	}
}

func FuzzWebSocket(f *testing.F) {
	for i, in := range [][]byte{
		wire(binry("x"), ping("p"), closing("\x03\xe8bye")),
		wire(first(opText, "\xce"), pong("p"), then(""), last("\xba")),
		wire(text("κόσμε"), text("\xe2\x82")),
		wire(text(strings.Repeat("z", 200) + "\xff")),
		wire(first(opBinary, strings.Repeat("z", 200)), last(strings.Repeat("z", 101))),
		wire(first(opBinary, ""), then(""), then(""), then(""), then(""), then("")),
		wire(rawFrame{op: opBinary, body: "x", form: 16}),
		wire(rawFrame{op: opBinary, claimed: 1<<63 - 1}),
		wire(text(`{"type":"MESSAGEUP","messageUp":{"uuid":"u1"}}`)),
		wire(squeezed(opText, deflated(f, "hello")), squeezed(opText, "\xf3\x48\xcd\xc9\xc9\x07\x00HIDDEN")),
		wire(squeezed(opBinary, deflated(f, strings.Repeat("z", 301)))),
		wire(rawFrame{op: opText, rsv: rsv1, more: true, body: "\xf2\x48"}, ping(""), last("\xcd\xc9\xc9\x07\x00")),
		wire(rawFrame{op: opText, plain: true, body: "κ"}),
	} {
		for p := range byte(8) {
			f.Add(in, p, uint64(i))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte, which byte, seed uint64) {
		p := [...]Protocol{WebSocket, WebSocketJSON, WebSocketEcho, WebSocketEcho.WithDeflate(15)}[which&3]
		s := NewStream(p)
		if which&4 != 0 {
			s = NewClientStream(p)
		}
		everyWay(t, s, in, fuzzLimits, seed)
		if p == WebSocket {
			reframe(t, p, in)
		}
	})
}

func FuzzUpgrade(f *testing.F) {
	for _, in := range []string{
		upgradeRequest(),
		swapped("/ws", "/ws?device_id=d%201&token=x&platform=a+b&session_id="),
		upgradeRequest("Sec-WebSocket-Protocol: bearer.a.b, sluice.v1.json", "Origin: https://a.example", "X-Forwarded-For: ::1"),
		upgradeRequest("Authorization: Bearer x", `Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits="10"; client_max_window_bits, x`),
		upgradeRequest("Content-Length: 1") + "x",
		upgradeRequest() + upgradeRequest(),
		upgradeRequest("X-A: a\nX-B: b", " folded"),
		"GET http://a/ HTTP/1.1\r\n\r\n",
		"\x16\x03\x01",
	} {
		f.Add([]byte(in), uint16(100))
	}
	o := &UpgradeOptions{HeaderBytes: 1024, Origins: []string{"https://a.example"}, TokenInQuery: true, Deflate: true}
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		u, consumed, err := ParseUpgrade(in, o)
		if consumed < 0 || consumed > len(in) || err != nil && consumed != 0 {
			t.Fatalf("consumed %d of %d, %v", consumed, len(in), err)
		}
		// A part of the request is answered the same, or not yet.
		part := in[:min(int(cut), len(in))]
		u2, consumed2, err2 := ParseUpgrade(part, o)
		if (consumed2 != 0 || err2 != nil) && (u2 != u || consumed2 != consumed || !equalUpgradeErrors(err, err2)) {
			t.Fatalf("%q: %+v, %d, %v; whole: %+v, %d, %v", part, u2, consumed2, err2, u, consumed, err)
		}
		switch {
		case err != nil:
			checkRefusal(t, err, ReasonOf(err))
		case consumed != 0:
			checkAccepted(t, in[:consumed], &u)
		case len(in) >= o.HeaderBytes:
			t.Fatal("waits for more than the limit")
		}
	})
}

// checkAccepted demands that the standard library reads the same out of a request, and understands the answer.
func checkAccepted(t *testing.T, request []byte, u *Upgrade) {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
	if err != nil {
		t.Fatalf("%q was accepted: %v", request, err)
	}
	if r.Method != http.MethodGet || r.ProtoMinor != 1 || r.ContentLength != 0 || r.Header.Get("Origin") != u.Origin ||
		r.Header.Get("Sec-WebSocket-Key") != string(u.key[:]) || r.UserAgent() != u.UserAgent && len(r.Header["User-Agent"]) == 1 {
		t.Fatalf("%q: %+v, the standard library reads %+v", request, u, r)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(AppendUpgradeResponse(nil, u))), r)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

func FuzzScan(f *testing.F) {
	f.Add(messageUp("u1", 3))
	f.Add([]byte("\x1a\x04\x0a\x02u1\x08\x86\x80\x80\x80\x10\x10\x01"))
	f.Add([]byte("\x08\x06\x1a\x08\x0a\x02u1\x1a\x02\xc3\x28"))
	f.Add([]byte("\x08\x0a\x1a\x0a\x0a\x06g:team\x10\x07"))
	f.Add([]byte("\x08\x05\x20\x01\x2a\x01x\x31\x00\x00\x00\x00\x00\x00\x00\x00\x3d\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := Scan(in)
		h.ConvID()
		if err != nil {
			return
		}
		// What the scan takes, both parsers take, and they read the same.
		var official, fast clientv1.Command
		if err := proto.Unmarshal(in, &official); err != nil {
			t.Fatal(err)
		}
		if err := fast.UnmarshalVT(in); err != nil {
			t.Fatal(err)
		}
		if h.Type != official.Type || h.Type != fast.Type || h.Code != official.Code || h.Code != fast.Code ||
			!bytes.Equal(h.Data, official.Data) || !bytes.Equal(h.Data, fast.Data) {
			t.Fatalf("scan %+v, protobuf %v, vtprotobuf %v", h, &official, &fast)
		}
		again, err := Scan(AppendCommandData(nil, h.Type, h.Code, h.Data))
		if err != nil || again.Type != h.Type || again.Code != h.Code || !bytes.Equal(again.UUID, h.UUID) {
			t.Fatalf("again %+v, %v", again, err)
		}
		if h.Type != clientv1.CommandType_MESSAGEUP {
			return
		}
		var up, fastUp clientv1.MessageUp
		if err := proto.Unmarshal(h.Data, &up); err != nil {
			t.Fatal(err)
		}
		if err := fastUp.UnmarshalVT(h.Data); err != nil {
			t.Fatal(err)
		}
		for _, m := range []*clientv1.MessageUp{&up, &fastUp} {
			if m.Uuid != string(h.UUID) || m.ReceiverId != string(h.ReceiverID) || len(m.Content)+len(m.Body) != h.ContentBytes {
				t.Fatalf("scan %+v, message %v", h, m)
			}
		}
	})
}

func FuzzFromJSON(f *testing.F) {
	for _, in := range []string{
		`{"type":"MESSAGEUP","messageUp":{"uuid":"u1","content":"h\u00e9","receiver_id":"bob","body":"//8=","sessionSeq":"1"}}`,
		`{"type":"MESSAGEUP","messageUp":{"uuid":"u1","type":"x","y":[{}]}}`,
		`{"type":1000,"code":-1,"data":"aGk="}`,
		`{"type":"PULL_REPLY","pullReply":{"messages":[{},{"seq":"1"}]}}`,
		` {"t\u0079pe":"ERROR","error":{"command":7},"x":[[1,{"}":"\""}]]} `,
		`{"type":"SYNC","sync":null}`,
	} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if !utf8.Valid(in) {
			return // The framing lets none of it through.
		}
		for _, r := range []role{roleServer, roleClient} {
			command := fromJSON(in, r)
			if _, err := Scan(command); err != nil {
				continue
			}
			if !json.Valid(in) {
				t.Fatalf("%q became a command", in)
			}
			text, err := appendJSON(nil, command)
			if err != nil {
				t.Fatalf("%q became %q, which has no JSON: %v", in, command, err)
			}
			equalCommands(t, fromJSON(text, roleClient), command)
		}
	})
}

func FuzzAppendJSON(f *testing.F) {
	f.Add(messageUp("u1", 3))
	f.Add(AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, ackOf("u1")))
	f.Add(AppendCommandData(nil, 1000, 7, []byte("hi")))
	f.Add(AppendCommandData(nil, clientv1.CommandType_ERROR, 0, []byte("\x0a\x01\xff")))
	f.Fuzz(func(t *testing.T, command []byte) {
		text, err := appendJSON(nil, command)
		if err != nil {
			if err != ErrUnencodable || len(text) != 0 {
				t.Fatalf("%q, %v", text, err)
			}
			return
		}
		if !json.Valid(text) || !utf8.Valid(text) {
			t.Fatalf("%q is not JSON", text)
		}
		h, err := Scan(fromJSON(text, roleClient))
		if err != nil {
			t.Fatalf("%q cannot be read back: %v", text, err)
		}
		if was, _ := Scan(command); h.Type != was.Type || h.Code != was.Code || !bytes.Equal(h.UUID, was.UUID) {
			t.Fatalf("%q: %+v, was %+v", text, h, was)
		}
	})
}

func FuzzDeflateOffer(f *testing.F) {
	f.Add("permessage-deflate; server_max_window_bits=10, permessage-deflate")
	f.Add(`x; a="b\"", permessage-deflate; client_max_window_bits`)
	f.Fuzz(func(t *testing.T, value string) {
		if bits, ok := acceptDeflate([]string{value}); ok && (bits < windowBitsMin || bits > windowBitsMax) {
			t.Fatalf("%q: %d", value, bits)
		}
	})
}
