package codec

import (
	"encoding/json"
	"strings"
	"testing"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func TestFromJSON(t *testing.T) {
	up := func(m *clientv1.MessageUp) []byte {
		return AppendCommand(nil, clientv1.CommandType_MESSAGEUP, 0, m)
	}
	hello := &clientv1.MessageUp{Uuid: "u1", Content: "héllo", ReceiverId: "bob"}
	deep := func(n int) string { return strings.Repeat(`[`, n) + strings.Repeat(`]`, n) }
	for _, c := range []struct {
		name, text string
		want       []byte
	}{
		{"message", `{"type":"MESSAGEUP","messageUp":{"uuid":"u1","content":"héllo","receiverId":"bob"}}`, up(hello)},
		{"names of the proto file", `{"type":"MESSAGEUP","messageUp":{"uuid":"u1","content":"h\u00e9llo","receiver_id":"bob"}}`, up(hello)},
		{"type as a number", `{"type":6,"messageUp":{"uuid":"u1","content":"héllo","receiverId":"bob"}}`, up(hello)},
		{"payload first, white space", " {\r\n\t\"messageUp\" : { \"uuid\" : \"u1\" } , \"type\" : \"MESSAGEUP\" } ", up(&clientv1.MessageUp{Uuid: "u1"})},
		{"64 bits as a string", `{"type":"MESSAGEUP","messageUp":{"sessionSeq":"18446744073709551615"}}`, up(&clientv1.MessageUp{SessionSeq: 1<<64 - 1})},
		{"body in base64", `{"type":"MESSAGEUP","messageUp":{"body":"//8="}}`, up(&clientv1.MessageUp{Body: []byte("\xff\xff")})},
		{"unknown members", `{"type":"HEARTBEAT","later":{"a":["}",1]},"x":"\"}","y":null}`, AppendCommand(nil, clientv1.CommandType_HEARTBEAT, 0, nil)},
		{"unknown member of the payload", `{"type":"MESSAGEUP","messageUp":{"uuid":"u1","later":[{}]}}`, up(&clientv1.MessageUp{Uuid: "u1"})},
		{"escaped member", `{"t\u0079pe":"HEARTBEAT"}`, AppendCommand(nil, clientv1.CommandType_HEARTBEAT, 0, nil)},
		{"no payload", `{"type":"SYNC"}`, AppendCommand(nil, clientv1.CommandType_SYNC, 0, nil)},
		{"code", `{"type":"ERROR","code":-1,"error":{"reason":"gap"}}`, AppendCommand(nil, clientv1.CommandType_ERROR, -1, &clientv1.Error{Reason: "gap"})},
		{"the user's own", `{"type":1000,"data":"aGk="}`, AppendCommandData(nil, 1000, 0, []byte("hi"))},
		{"without padding, other alphabet", `{"type":1000,"data":"-_8"}`, AppendCommandData(nil, 1000, 0, []byte("\xfb\xff"))},
		{"the user's own, empty", `{"type":2147483647}`, AppendCommandData(nil, 2147483647, 0, nil)},
		{"unknown below 1000", `{"type":999,"data":"aGk="}`, AppendCommandData(nil, 999, 0, []byte("hi"))},
		{"nested to the limit", `{"type":"HEARTBEAT","x":` + deep(jsonDepthMax-1) + `}`, AppendCommand(nil, clientv1.CommandType_HEARTBEAT, 0, nil)},
		{"brackets in a string", `{"type":"HEARTBEAT","x":"` + strings.Repeat("[", 100) + `"}`, AppendCommand(nil, clientv1.CommandType_HEARTBEAT, 0, nil)},
		// From a client, what only a server sends is not decoded.
		{"list from a client", `{"type":"PULL_REPLY","pullReply":{"messages":[{},{},{}]}}`, AppendCommand(nil, clientv1.CommandType_PULL_REPLY, 0, nil)},
	} {
		got := fromJSON([]byte(c.text), roleServer)
		if _, err := Scan(got); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if string(got) != string(c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestNotACommandInJSON(t *testing.T) {
	deep := strings.Repeat(`[`, 100) + strings.Repeat(`]`, 100)
	for _, c := range []struct {
		name, text string
		err        error
		kind       clientv1.CommandType
		uuid       string
	}{
		{"empty", ``, ErrBadCommand, 0, ""},
		{"a list", `[]`, ErrBadCommand, 0, ""},
		{"a string", `"{}"`, ErrBadCommand, 0, ""},
		{"no type", `{}`, ErrBadCommand, 0, ""},
		{"cut short", `{"type":"HEARTBEAT"`, ErrBadCommand, 0, ""},
		{"two objects", `{"type":"HEARTBEAT"}{}`, ErrBadCommand, 0, ""},
		{"unknown name", `{"type":"HEARTBEET"}`, ErrBadCommand, 0, ""},
		{"name in other case", `{"type":"heartbeat"}`, ErrBadCommand, 0, ""},
		{"type null", `{"type":null}`, ErrBadCommand, 0, ""},
		{"type with a point", `{"type":5.0}`, ErrBadCommand, 0, ""},
		{"type with an exponent", `{"type":1e3}`, ErrBadCommand, 0, ""},
		{"negative type", `{"type":-1}`, ErrBadCommand, 0, ""},
		{"type of 32 bits", `{"type":2147483648}`, ErrBadCommand, 0, ""},
		{"type twice", `{"type":"HEARTBEAT","type":"LOGOUT"}`, ErrBadCommand, 0, ""},
		{"type twice, once escaped", `{"type":"HEARTBEAT","t\u0079pe":"LOGOUT"}`, ErrBadCommand, 0, ""},
		{"two payloads", `{"type":"SYNC","sync":{},"pull":{}}`, ErrBadCommand, 0, ""},
		{"nested too deep", `{"type":"HEARTBEAT","x":` + deep + `}`, ErrBadCommand, 0, ""},
		{"another type's payload", `{"type":"SYNC","pull":{}}`, ErrBadCommand, clientv1.CommandType_SYNC, ""},
		{"payload where none is", `{"type":"HEARTBEAT","sync":{}}`, ErrBadCommand, clientv1.CommandType_HEARTBEAT, ""},
		{"payload of the user's own", `{"type":1000,"sync":{}}`, ErrBadCommand, 1000, ""},
		{"data beside a payload", `{"type":"SYNC","data":"aGk="}`, ErrBadCommand, clientv1.CommandType_SYNC, ""},
		{"data that is not base64", `{"type":1000,"data":"!"}`, ErrBadCommand, 1000, ""},
		{"data that is no string", `{"type":1000,"data":7}`, ErrBadCommand, 1000, ""},
		{"code that is no number", `{"type":1000,"code":"7"}`, ErrBadCommand, 1000, ""},
		{"payload that does not fit", `{"type":"READ","read":{"seq":"many"}}`, ErrBadCommand, clientv1.CommandType_READ, ""},
		{"payload null", `{"type":"READ","read":null}`, ErrBadCommand, clientv1.CommandType_READ, ""},
		{"message that does not fit", `{"type":"MESSAGEUP","messageUp":{"type":"x","uuid":"u1"}}`, ErrBadMessage, clientv1.CommandType_MESSAGEUP, "u1"},
		{"member of the message twice", `{"type":"MESSAGEUP","messageUp":{"uuid":"u1","content":"a","content":"b"}}`, ErrBadMessage, clientv1.CommandType_MESSAGEUP, "u1"},
		{"message nested too deep", `{"type":"MESSAGEUP","messageUp":{"uuid":"u1","x":` + deep + `}}`, ErrBadCommand, 0, ""},
		{"uuid that does not fit", `{"type":"MESSAGEUP","messageUp":{"uuid":7}}`, ErrBadMessage, clientv1.CommandType_MESSAGEUP, ""},
		{"message that is a list", `{"type":"MESSAGEUP","messageUp":[]}`, ErrBadMessage, clientv1.CommandType_MESSAGEUP, ""},
	} {
		h, err := Scan(fromJSON([]byte(c.text), roleServer))
		if err != c.err || h.Type != c.kind || string(h.UUID) != c.uuid {
			t.Errorf("%s: type %v, uuid %q, %v; want %v, %q, %v", c.name, h.Type, h.UUID, err, c.kind, c.uuid, c.err)
		}
	}
}

// Every payload that there is, filled and empty, from protobuf to JSON and back.
func TestJSONRoundTrip(t *testing.T) {
	for kind, p := range jsonPayloads {
		if p.member == "" {
			continue
		}
		for _, m := range []payload{p.make(), filled(p.make())} {
			command := AppendCommand(nil, clientv1.CommandType(kind), 7, m)
			text, err := appendJSON(nil, command)
			if err != nil || !json.Valid(text) {
				t.Errorf("%s: %s, %v", p.member, text, err)
				continue
			}
			equalCommands(t, fromJSON(text, roleClient), command)
		}
	}
	for kind := range clientv1.CommandType_name {
		switch _, ok := payloadOf(clientv1.CommandType(kind)); {
		case ok, kind == int32(clientv1.CommandType_UNKNOWN), kind == int32(clientv1.CommandType_HEARTBEAT):
		default:
			t.Errorf("%s has no payload in JSON", clientv1.CommandType(kind))
		}
	}
}

// filled sets every scalar field of m to something that is not its zero.
func filled(m payload) payload {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsList() {
			continue
		}
		switch f.Kind() {
		case protoreflect.StringKind:
			r.Set(f, protoreflect.ValueOfString("\u03ba\"\\\n"))
		case protoreflect.BytesKind:
			r.Set(f, protoreflect.ValueOfBytes([]byte{0, 0xff}))
		case protoreflect.BoolKind:
			r.Set(f, protoreflect.ValueOfBool(true))
		case protoreflect.Int32Kind:
			r.Set(f, protoreflect.ValueOfInt32(-1))
		case protoreflect.Uint32Kind:
			r.Set(f, protoreflect.ValueOfUint32(1<<32-1))
		case protoreflect.Int64Kind:
			r.Set(f, protoreflect.ValueOfInt64(-1<<63))
		case protoreflect.Uint64Kind:
			r.Set(f, protoreflect.ValueOfUint64(1<<64-1))
		case protoreflect.EnumKind:
			r.Set(f, protoreflect.ValueOfEnum(1))
		}
	}
	return m
}

func TestJSONIsPlain(t *testing.T) {
	text, err := appendJSON(nil, AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: "u1", Seq: 1 << 60}))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Type       string
		MessageAck struct {
			UUID, Status string
			Seq          string
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	// A client that looks at status must find it, although ACK_OK is a zero; a number of 64 bits is a string.
	if got.Type != "MESSAGEACK" || got.MessageAck.Status != "ACK_OK" || got.MessageAck.Seq != "1152921504606846976" {
		t.Errorf("%s", text)
	}
	for _, c := range []struct{ command, want string }{
		{"\x08\xe8\x07\x1a\x02hi", `{"type":1000,"data":"aGk="}`},
		{"\x08\xe8\x07", `{"type":1000}`},
		{"\x08\x05", `{"type":"HEARTBEAT"}`},
		{"", `{"type":"UNKNOWN"}`},
	} {
		if text, err := appendJSON(nil, []byte(c.command)); err != nil || string(text) != c.want {
			t.Errorf("%s, %v; want %s", text, err, c.want)
		}
	}
	if _, err := appendJSON(nil, AppendCommand(nil, clientv1.CommandType_ERROR, 0, &clientv1.Error{Detail: "\xff"})); err != ErrUnencodable {
		t.Errorf("a detail that is not UTF-8: %v", err)
	}
}
