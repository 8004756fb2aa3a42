package stateserver

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

func TestMessageIsStoredAckedAndDelivered(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	first := ackOf(t, g.ask(g.frame(1, "alice", up("u1", "bob", "hello"))))
	if first.Status != clientv1.MessageAckStatus_ACK_OK || first.Seq != 1 || first.ConvId != "u:alice:bob" || first.MsgId == "" || first.ServerAtMs == 0 || first.Uuid != "u1" {
		t.Fatalf("ack %v", first)
	}
	if again := ackOf(t, g.ask(g.frame(1, "alice", up("u1", "bob", "hello")))); !proto.Equal(again, first) {
		t.Errorf("the resend got %v, want the first result %v", again, first)
	}
	if other := ackOf(t, g.ask(g.frame(1, "alice", up("u1", "bob", "something else")))); other.Status != clientv1.MessageAckStatus_ACK_FAIL || other.Reason != "uuid_reused" {
		t.Errorf("another payload under the same uuid got %v", other)
	}
	if ms := b.conversation("u:alice:bob"); len(ms) != 1 || ms[0].Content != "hello" {
		t.Errorf("stored: %+v", ms)
	}
	eventually(t, "delivery", func() (ok bool) {
		b.delivery.look(func() { ok = len(b.delivery.tasks) == 1 && len(b.delivery.open) == 0 })
		return ok
	})
	b.delivery.look(func() {
		if k := b.delivery.tasks[0]; !slices.Equal(k.Receivers, []string{"bob", "alice"}) || k.SenderDevice != "phone" || k.Message.Seq != 1 || k.Message.Content != "hello" {
			t.Errorf("task %+v", k)
		}
	})
}

func TestPipelinedFramesStayInOrder(t *testing.T) {
	const conns, each = 2, 5000
	b := start(t, nil)
	g := b.gateway("gw-1")
	var items []*statev1.UplinkItem
	for i := range each {
		for c := range conns {
			items = append(items, g.frame(uint64(c), fmt.Sprintf("user%d", c), up(fmt.Sprintf("m%d", i), "bob", fmt.Sprint(i))))
		}
	}
	for len(items) > 0 {
		n := min(len(items), 1+rand.IntN(batchItemsMax))
		g.send(items[:n]...)
		items = items[n:]
	}
	next := make([]uint64, conns)
	for _, a := range g.answers(conns * each) {
		next[a.ConnId]++
		ack := ackOf(t, a)
		if a.ConnSeq != next[a.ConnId] || ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.Seq != int64(a.ConnSeq) {
			t.Fatalf("connection %d: answer %d is for frame %d: %v", a.ConnId, next[a.ConnId], a.ConnSeq, ack)
		}
	}
	for c := range conns {
		for i, m := range b.conversation(fmt.Sprintf("u:bob:user%d", c)) {
			if m.Content != fmt.Sprint(i) {
				t.Fatalf("message %d of user%d is %s", i, c, m.Content)
			}
		}
	}
}

func TestPingAndBadItems(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	g.send()
	g.await("pong", func() bool { return g.empties == 1 })
	for name, c := range map[string]struct {
		payload []byte
		uid     string
		code    codes.Code
		want    string
	}{
		"garbage":                  {[]byte{0xff, 0xff}, "a", codes.InvalidArgument, "nothing"},
		"bad uid":                  {up("1", "b", ""), "a b", codes.InvalidArgument, "nothing"},
		"unknown command":          {command(900, &clientv1.Logout{}), "a", codes.Unimplemented, "nothing"},
		"user's command, no hook":  {command(1000, &clientv1.Logout{}), "a", codes.Unimplemented, "nothing"},
		"a command of the gateway": {command(clientv1.CommandType_LOGIN, &clientv1.Login{}), "a", codes.Unimplemented, "nothing"},
		"logout":                   {command(clientv1.CommandType_LOGOUT, &clientv1.Logout{}), "a", codes.OK, "nothing"},
		"no uuid":                  {up("", "b", ""), "a", codes.OK, `ERROR reason:"bad_uuid" command:MESSAGEUP`},
		"bad receiver":             {up("1", "b c", ""), "a", codes.OK, `MESSAGEACK uuid:"1" status:ACK_FAIL reason:"bad_receiver"`},
		"no group":                 {up("2", "g:none", ""), "a", codes.OK, `MESSAGEACK uuid:"2" status:ACK_FAIL reason:"no_such_group"`},
		"invalid UTF-8":            {up("3", "b", "\xff"), "a", codes.OK, `MESSAGEACK uuid:"3" status:ACK_FAIL reason:"bad_message"`},
		"too big":                  {up("4", "b", string(make([]byte, 65536-2047))), "a", codes.OK, `MESSAGEACK uuid:"4" status:ACK_FAIL reason:"body_too_big"`},
	} {
		a := g.ask(g.frame(7, c.uid, c.payload))
		if codes.Code(a.Status) != c.code || normal(describe(a.Payload)) != c.want {
			t.Errorf("%s: status %v %q, %s", name, codes.Code(a.Status), a.Detail, describe(a.Payload))
		}
	}
	if ack := ackOf(t, g.ask(g.frame(7, "a", up("5", "b", string(make([]byte, 65536-2048)))))); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Errorf("the largest body: %v", ack)
	}
}
