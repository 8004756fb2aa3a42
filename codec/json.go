package codec

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The JSON mapping (design: protocol 1) is the protobuf JSON mapping, with the payload inlined under its own name:
// {"type":"MESSAGEUP","messageUp":{...}}. A type without a payload of its own is a number (or a name), and its bytes
// are base64 in "data". Members that are not known are ignored.

const (
	// jsonDepthMax bounds nesting; the deepest payload, PULL_REPLY, has four levels.
	jsonDepthMax = 32

	// malformed is a tag with field number 0, which no protobuf parser takes: it stands where JSON did not fit, so that
	// Scan finds the fault like any other.
	malformed = 0

	memberType = "type"
	memberCode = "code"
	memberData = "data"
)

// payload is a message that can stand in Command.data.
type payload interface {
	proto.Message
	Message
	UnmarshalVT(b []byte) error
}

type jsonPayload struct {
	member string
	make   func() payload
	// lists marks a payload with repeated fields. Only a server sends them; from a client, where an element of three bytes
	// would become 150 bytes of memory, they are not decoded.
	lists bool
}

// jsonPayloads is indexed by CommandType; an entry without a member has no payload (UNKNOWN, HEARTBEAT).
var jsonPayloads = [...]jsonPayload{
	clientv1.CommandType_LOGIN:               {"login", func() payload { return new(clientv1.Login) }, false},
	clientv1.CommandType_LOGIN_REPLY:         {"loginReply", func() payload { return new(clientv1.LoginReply) }, false},
	clientv1.CommandType_TOKEN_REFRESH:       {"tokenRefresh", func() payload { return new(clientv1.TokenRefresh) }, false},
	clientv1.CommandType_TOKEN_REFRESH_REPLY: {"tokenRefreshReply", func() payload { return new(clientv1.TokenRefreshReply) }, false},
	clientv1.CommandType_MESSAGEUP:           {"messageUp", func() payload { return new(clientv1.MessageUp) }, false},
	clientv1.CommandType_MESSAGEACK:          {"messageAck", func() payload { return new(clientv1.MessageAck) }, false},
	clientv1.CommandType_MESSAGEDOWN:         {"messageDown", func() payload { return new(clientv1.MessageDown) }, false},
	clientv1.CommandType_DELIVERED:           {"delivered", func() payload { return new(clientv1.Delivered) }, false},
	clientv1.CommandType_READ:                {"read", func() payload { return new(clientv1.Read) }, false},
	clientv1.CommandType_DELIVERED_NOTICE:    {"deliveredNotice", func() payload { return new(clientv1.DeliveredNotice) }, false},
	clientv1.CommandType_READ_NOTICE:         {"readNotice", func() payload { return new(clientv1.ReadNotice) }, false},
	clientv1.CommandType_SYNC:                {"sync", func() payload { return new(clientv1.Sync) }, false},
	clientv1.CommandType_SYNC_REPLY:          {"syncReply", func() payload { return new(clientv1.SyncReply) }, true},
	clientv1.CommandType_PULL:                {"pull", func() payload { return new(clientv1.Pull) }, false},
	clientv1.CommandType_PULL_REPLY:          {"pullReply", func() payload { return new(clientv1.PullReply) }, true},
	clientv1.CommandType_RESYNC:              {"resync", func() payload { return new(clientv1.Resync) }, false},
	clientv1.CommandType_RECONNECT:           {"reconnect", func() payload { return new(clientv1.Reconnect) }, false},
	clientv1.CommandType_KICK:                {"kick", func() payload { return new(clientv1.Kick) }, false},
	clientv1.CommandType_ERROR:               {"error", func() payload { return new(clientv1.Error) }, false},
	clientv1.CommandType_LOGOUT:              {"logout", func() payload { return new(clientv1.Logout) }, false},
}

// payloadOf is the payload of t; ok is false for a type that has none here.
func payloadOf(t clientv1.CommandType) (p jsonPayload, ok bool) {
	if t < 0 || int(t) >= len(jsonPayloads) {
		return jsonPayload{}, false
	}
	p = jsonPayloads[t]
	return p, p.member != ""
}

// payloadMember reports whether key is the name of any payload.
func payloadMember(key string) bool {
	for _, p := range jsonPayloads {
		if p.member == key && key != "" {
			return true
		}
	}
	return false
}

// appendJSON appends a Command (protobuf bytes) as JSON. It fails with ErrUnencodable, and returns dst as it was.
func appendJSON(dst, command []byte) ([]byte, error) {
	h, err := Scan(command)
	if err != nil || h.Type < 0 { // No type is negative; what comes from a peer in JSON may not be either.
		return dst, ErrUnencodable
	}
	out := append(dst, `{"type":`...)
	if name, ok := clientv1.CommandType_name[int32(h.Type)]; ok {
		out = strconv.AppendQuote(out, name)
	} else {
		out = strconv.AppendInt(out, int64(h.Type), 10)
	}
	if h.Code != 0 {
		out = strconv.AppendInt(append(out, `,"code":`...), int64(h.Code), 10)
	}
	if p, ok := payloadOf(h.Type); ok {
		m := p.make()
		if err := m.UnmarshalVT(h.Data); err != nil {
			return dst, ErrUnencodable
		}
		out = append(append(append(out, `,"`...), p.member...), `":`...)
		// Zero values are written too: a client that looks at status must find ACK_OK.
		if out, err = (protojson.MarshalOptions{EmitDefaultValues: true}).MarshalAppend(out, m); err != nil {
			return dst, ErrUnencodable
		}
	} else if len(h.Data) > 0 {
		out = base64.StdEncoding.AppendEncode(append(out, `,"data":"`...), h.Data)
		out = append(out, '"')
	}
	return append(out, '}'), nil
}

// envelope is a JSON Command taken apart; the values alias the text.
type envelope struct {
	kind, code, data, payload []byte
	member                    string // Of payload.
}

// fromJSON turns JSON into a Command. What is not one becomes a Command that Scan refuses: with ErrBadMessage and the
// uuid if only the messageUp does not fit, else with ErrBadCommand.
func fromJSON(text []byte, r role) []byte {
	e, ok := openEnvelope(text)
	if !ok {
		return []byte{malformed}
	}
	t, ok := e.commandType()
	if !ok {
		return []byte{malformed}
	}
	code, ok := e.commandCode()
	if !ok {
		return append(appendEnvelope(nil, t, 0), malformed)
	}
	p, named := payloadOf(t)
	switch {
	case !named && e.payload == nil:
		data, ok := decodeData(e.data)
		if !ok {
			return append(appendEnvelope(nil, t, code), malformed)
		}
		return AppendCommandData(nil, t, code, data)
	case !named || e.data != nil || e.payload != nil && e.member != p.member:
		return append(appendEnvelope(nil, t, code), malformed)
	}
	if p.lists && r == roleServer {
		return appendEnvelope(nil, t, code)
	}
	m := p.make()
	if e.payload != nil {
		// The decoder's recursion limit also holds for members that it discards.
		o := protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: jsonDepthMax}
		if err := o.Unmarshal(e.payload, m); err != nil {
			return malformedPayload(t, code, e.payload)
		}
	}
	return AppendCommand(nil, t, code, m)
}

// malformedPayload keeps what an answer needs: of a MESSAGEUP the uuid, of everything else the type.
func malformedPayload(t clientv1.CommandType, code int32, text []byte) []byte {
	if t != clientv1.CommandType_MESSAGEUP {
		return append(appendEnvelope(nil, t, code), malformed)
	}
	var data []byte
	members(text, func(key string, value []byte) bool {
		var uuid string
		if key == "uuid" && data == nil && json.Unmarshal(value, &uuid) == nil {
			data = protowire.AppendString(protowire.AppendTag(nil, upUUID, protowire.BytesType), uuid)
		}
		return true
	})
	return AppendCommandData(nil, t, code, append(data, malformed))
}

// openEnvelope takes the outer object apart. Any member that counts may stand there once only: of two, one parser
// would take the first and another one the last.
func openEnvelope(text []byte) (e envelope, ok bool) {
	if !json.Valid(text) {
		return e, false
	}
	ok = members(text, func(key string, value []byte) bool {
		var slot *[]byte
		switch {
		case key == memberType:
			slot = &e.kind
		case key == memberCode:
			slot = &e.code
		case key == memberData:
			slot = &e.data
		case payloadMember(key):
			slot, e.member = &e.payload, key
		default:
			return true
		}
		if *slot != nil {
			return false
		}
		*slot = value
		return true
	})
	return e, ok
}

func (e *envelope) commandType() (t clientv1.CommandType, ok bool) {
	if len(e.kind) == 0 {
		return 0, false
	}
	if e.kind[0] == '"' {
		v, ok := clientv1.CommandType_value[string(bytes.Trim(e.kind, `"`))]
		return clientv1.CommandType(v), ok
	}
	v, err := strconv.ParseInt(string(e.kind), 10, 32)
	return clientv1.CommandType(v), err == nil && v >= 0
}

func (e *envelope) commandCode() (code int32, ok bool) {
	if e.code == nil {
		return 0, true
	}
	v, err := strconv.ParseInt(string(e.code), 10, 32)
	return int32(v), err == nil
}

// decodeData takes both alphabets of base64, with and without padding, as the protobuf mapping does.
func decodeData(value []byte) (data []byte, ok bool) {
	if value == nil {
		return nil, true
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return nil, false
	}
	enc := base64.StdEncoding
	if bytes.ContainsAny(value, "-_") {
		enc = base64.URLEncoding
	}
	if len(text)%4 != 0 {
		enc = enc.WithPadding(base64.NoPadding)
	}
	data, err := enc.DecodeString(text)
	return data, err == nil
}
