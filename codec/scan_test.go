package codec

import (
	"strings"
	"testing"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
)

func ackOf(uuid string) *clientv1.MessageAck {
	return &clientv1.MessageAck{Uuid: uuid, MsgId: "7301234567890123456", ConvId: "u:alice:bob", Seq: 7, ServerAtMs: 1700000000000}
}

func TestScan(t *testing.T) {
	up := func(data string) string {
		return string(AppendCommandData(nil, clientv1.CommandType_MESSAGEUP, 0, []byte(data)))
	}
	const uuid = "\x0a\x02u1"
	full := AppendCommand(nil, clientv1.CommandType_MESSAGEUP, -1, &clientv1.MessageUp{
		Uuid: "u1", Type: -5, Content: "four", ReceiverId: "bob", Body: []byte("\xff\xfe"), SessionId: "s", SessionSeq: 1 << 63, SessionLow: 1,
		ClientSeq: 2, SentAtMs: -1,
	})
	for _, c := range []struct {
		name    string
		command string
		want    Header
		err     error
	}{
		{"empty", "", Header{}, nil},
		{"heartbeat", "\x08\x05", Header{Type: clientv1.CommandType_HEARTBEAT}, nil},
		{"the user's own", "\x08\xe8\x07\x1a\x02hi", Header{Type: 1000, Data: []byte("hi")}, nil},
		{"everything", string(full), Header{Type: clientv1.CommandType_MESSAGEUP, Code: -1, UUID: []byte("u1"), ReceiverID: []byte("bob"), ContentBytes: 6}, nil},
		{"no fields", up(""), Header{Type: clientv1.CommandType_MESSAGEUP}, nil},
		{"the last one counts", up(uuid + "\x0a\x02u2"), Header{Type: clientv1.CommandType_MESSAGEUP, UUID: []byte("u2")}, nil},
		{"data twice", "\x08\x06\x1a\x01\xff\x1a\x04" + uuid, Header{Type: clientv1.CommandType_MESSAGEUP, UUID: []byte("u1")}, nil},
		{"type behind the data", "\x1a\x04" + uuid + "\x08\x06", Header{Type: clientv1.CommandType_MESSAGEUP, UUID: []byte("u1")}, nil},
		{"unknown fields", "\x08\x05\x20\x01\x2a\x01x\x31\x00\x00\x00\x00\x00\x00\x00\x00\x3d\x00\x00\x00\x00", Header{Type: clientv1.CommandType_HEARTBEAT}, nil},
		{"type of 33 bits", "\x08\x86\x80\x80\x80\x10", Header{Type: clientv1.CommandType_MESSAGEUP}, nil},

		{"field 0", "\x00", Header{}, ErrBadCommand},
		{"field 0 behind the type", "\x08\x05\x00", Header{Type: clientv1.CommandType_HEARTBEAT}, ErrBadCommand},
		{"type as bytes", "\x0a\x01x", Header{}, ErrBadCommand},
		{"data as a number", "\x18\x01", Header{}, ErrBadCommand},
		{"group", "\x23\x24", Header{}, ErrBadCommand},
		{"end of a group", "\x24", Header{}, ErrBadCommand},
		{"wire type 7", "\x27", Header{}, ErrBadCommand},
		{"number that does not end", "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Header{}, ErrBadCommand},
		{"number cut short", "\x08\x80", Header{}, ErrBadCommand},
		{"4 GiB of data", "\x1a\xff\xff\xff\xff\x0f", Header{}, ErrBadCommand},
		{"2^63 of data", "\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", Header{}, ErrBadCommand},
		{"text instead", "hello", Header{}, ErrBadCommand},

		{"message that is none", up("\x00"), Header{}, ErrBadMessage},
		{"bad behind the uuid", up(uuid + "\x00"), Header{UUID: []byte("u1")}, ErrBadMessage},
		{"content that is not UTF-8", up("\x1a\x01\xff" + uuid), Header{UUID: []byte("u1")}, ErrBadMessage},
		{"receiver that is not UTF-8", up(uuid + "\x22\x01\xff"), Header{UUID: []byte("u1")}, ErrBadMessage},
		{"uuid that is not UTF-8", up("\x0a\x01\xff"), Header{}, ErrBadMessage},
		{"uuid as a number", up("\x08\x01"), Header{}, ErrBadMessage},
		{"session_seq as bytes", up(uuid + "\x3a\x01x"), Header{UUID: []byte("u1")}, ErrBadMessage},
		{"nested groups", up(uuid + strings.Repeat("\x5b", 10000)), Header{UUID: []byte("u1")}, ErrBadMessage},
		{"content cut short", up(uuid + "\x1a\x05abc"), Header{UUID: []byte("u1")}, ErrBadMessage},
	} {
		h, err := Scan([]byte(c.command))
		if err != c.err {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
			continue
		}
		if string(h.UUID) != string(c.want.UUID) || string(h.ReceiverID) != string(c.want.ReceiverID) {
			t.Errorf("%s: uuid %q, receiver %q", c.name, h.UUID, h.ReceiverID)
		}
		if err == nil && (h.Type != c.want.Type || h.Code != c.want.Code || h.ContentBytes != c.want.ContentBytes) {
			t.Errorf("%s: %+v, want %+v", c.name, h, c.want)
		}
	}
}

func TestConvID(t *testing.T) {
	for _, c := range []struct {
		name    string
		command []byte
		want    string
	}{
		{"read", AppendCommand(nil, clientv1.CommandType_READ, 0, &clientv1.Read{ConvId: "g:team", Seq: 7}), "g:team"},
		{"delivered", AppendCommand(nil, clientv1.CommandType_DELIVERED, 0, &clientv1.Delivered{ConvId: "g:team", Seq: 7}), "g:team"},
		{"pull", AppendCommand(nil, clientv1.CommandType_PULL, 0, &clientv1.Pull{ConvId: "g:team", Limit: 7}), "g:team"},
		{"sync has none", AppendCommand(nil, clientv1.CommandType_SYNC, 0, &clientv1.Sync{Cursor: "g:team"}), ""},
		{"bad behind it", AppendCommandData(nil, clientv1.CommandType_READ, 0, []byte("\x0a\x01x\x00")), "x"},
		{"cut short", AppendCommandData(nil, clientv1.CommandType_READ, 0, []byte("\x0a\x05x")), ""},
	} {
		h, err := Scan(c.command)
		if err != nil || string(h.ConvID()) != c.want {
			t.Errorf("%s: %q, %v", c.name, h.ConvID(), err)
		}
	}
}

func TestAppendCommand(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"nothing", AppendCommand(nil, 0, 0, nil), ""},
		{"type only", AppendCommand([]byte("x"), clientv1.CommandType_HEARTBEAT, 0, nil), "x\x08\x05"},
		{"empty payload", AppendCommand(nil, clientv1.CommandType_LOGOUT, 0, &clientv1.Logout{}), "\x08\x15"},
		{"code", AppendCommand(nil, clientv1.CommandType_KICK, 4500, &clientv1.Kick{Reason: "kicked"}), "\x08\x13\x10\x94\x23\x1a\x08\x12\x06kicked"},
		{"bytes", AppendCommandData(nil, 1000, 0, []byte("hi")), "\x08\xe8\x07\x1a\x02hi"},
		{"no bytes", AppendCommandData(nil, 1000, 0, nil), "\x08\xe8\x07"},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
}

func TestErrorsHaveReasons(t *testing.T) {
	seen := map[string]bool{}
	for e := ErrFraming; e <= ErrUnencodable; e++ {
		if e.Error() == Error(0).Error() || seen[e.Error()] {
			t.Errorf("error %d has no text of its own: %v", e, e)
		}
		seen[e.Error()] = true
		r := ReasonOf(e)
		if r == reason.None {
			t.Errorf("%v has no reason", e)
		}
		if ends := e < ErrBadCommand; ends != (r.Code() != 0) && e != ErrUnencodable {
			t.Errorf("%v: reason %v has code %d", e, r, r.Code())
		}
	}
	if r := ReasonOf(nil); r != reason.None {
		t.Errorf("no error is %v", r)
	}
	if r := ReasonOf(refuse(reason.NotFound, "")); r != reason.NotFound {
		t.Errorf("a refused upgrade is %v", r)
	}
	if r := ReasonOf(errForeign{}); r != reason.Internal {
		t.Errorf("an unknown error is %v", r)
	}
}

type errForeign struct{}

func (errForeign) Error() string { return "foreign" }
