package stateserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

func dataOf[M interface{ UnmarshalVT([]byte) error }](t *testing.T, it *statev1.DownlinkItem, want clientv1.CommandType, m M) M {
	t.Helper()
	var cmd clientv1.Command
	if err := cmd.UnmarshalVT(it.Payload); err != nil || cmd.Type != want {
		t.Fatalf("got status %d, %s, want %s", it.Status, describe(it.Payload), want)
	}
	if err := m.UnmarshalVT(cmd.Data); err != nil {
		t.Fatal(err)
	}
	return m
}

func pull(conv string, after int64, limit uint32) []byte {
	return command(clientv1.CommandType_PULL, &clientv1.Pull{ConvId: conv, AfterSeq: after, Limit: limit})
}

func TestPull(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	big := strings.Repeat("x", 60_000)
	for i, text := range []string{"1", "2", big, "4", strings.Repeat("y", 20_000), strings.Repeat("z", 20_000), "7"} {
		if ack := ackOf(t, g.ask(g.frame(1, "alice", up(fmt.Sprint(i), "bob", text)))); ack.Status != clientv1.MessageAckStatus_ACK_OK {
			t.Fatal(ack)
		}
	}
	seqs := func(r *clientv1.PullReply) (out []int64) {
		for _, m := range r.Messages {
			out = append(out, m.Seq)
		}
		return out
	}
	for _, c := range []struct {
		after int64
		limit uint32
		want  []int64
		more  bool
	}{
		{0, 1, []int64{1}, true}, {0, 0, []int64{1, 2}, true}, {2, 10, []int64{3}, true}, {3, 10, []int64{4, 5, 6, 7}, false},
		{-5, 2, []int64{1, 2}, true}, {7, 5, nil, false}, {1 << 62, 1 << 31, nil, false},
	} {
		a := g.ask(g.frame(2, "bob", pull("u:alice:bob", c.after, c.limit)))
		r := dataOf(t, a, clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
		if !slices.Equal(seqs(r), c.want) || r.HasMore != c.more {
			t.Errorf("pull after %d, limit %d: %v, more %v", c.after, c.limit, seqs(r), r.HasMore)
		}
		if len(c.want) > 1 && len(a.Payload) > replyBytesMax+1024 {
			t.Errorf("pull after %d: %d bytes", c.after, len(a.Payload))
		}
	}
	r := dataOf(t, g.ask(g.frame(2, "bob", pull("u:alice:bob", 1, 1))), clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
	if m := r.Messages[0]; m.FromUid != "alice" || m.Content != "2" || m.Uuid != "1" || m.MsgId == "" || m.ServerAtMs == 0 {
		t.Errorf("%v", m)
	}
	for conv, want := range map[string]string{
		"u:alice:bob": "not_member", "u:nobody:x": "not_member", "g:none": "not_member", "nonsense": "not_member", strings.Repeat("x", 300): "bad_message",
	} {
		e := dataOf(t, g.ask(g.frame(3, "carol", pull(conv, 0, 1))), clientv1.CommandType_ERROR, &clientv1.Error{})
		if e.Reason != want || e.Command != clientv1.CommandType_PULL || (want == "not_member" && e.ConvId != conv) {
			t.Errorf("carol pulls %s: %v", conv, e)
		}
	}
	r = dataOf(t, g.ask(g.frame(3, "carol", pull("u:carol:dave", 0, 1))), clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
	if len(r.Messages) != 0 || r.HasMore {
		t.Errorf("a conversation without messages: %v", r)
	}
}

func TestDeliveredReadAndSync(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	for i := range 5 {
		ackOf(t, g.ask(g.frame(1, "alice", up(fmt.Sprint(i), "bob", "x"))))
	}
	tell := func(uid string, t clientv1.CommandType, m message) {
		if a := g.ask(g.frame(9, uid, command(t, m))); len(a.Payload) > 0 || a.Status != 0 {
			b.t.Errorf("%s answered with %s", t, describe(a.Payload))
		}
	}
	tell("bob", clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "u:alice:bob", Seq: 3})
	b.told(t, "bob/phone u:alice:bob 3", `[alice] DELIVERED_NOTICE conv_id:"u:alice:bob" uid:"bob" seq:3`)
	tell("bob", clientv1.CommandType_READ, &clientv1.Read{ConvId: "u:alice:bob", Seq: 4})
	b.told(t, "bob/phone u:alice:bob 4", `[alice] DELIVERED_NOTICE conv_id:"u:alice:bob" uid:"bob" seq:4`, `[alice bob] but bob/phone READ_NOTICE conv_id:"u:alice:bob" uid:"bob" seq:4`)
	// The future is cut to the last number; a stranger and nonsense change nothing.
	tell("carol", clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "u:alice:bob", Seq: 5})
	tell("bob", clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "u:bob:nobody", Seq: 5})
	tell("bob", clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "u:alice:bob", Seq: -1})
	tell("bob", clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "u:alice:bob", Seq: 1 << 60})
	b.told(t, "bob/phone u:alice:bob 5", `[alice] DELIVERED_NOTICE conv_id:"u:alice:bob" uid:"bob" seq:5`)
	b.delivery.look(func() {
		for _, a := range b.delivery.acks {
			if !strings.HasPrefix(a, "bob/phone u:alice:bob ") {
				t.Errorf("ack %q", a)
			}
		}
	})
	sync := func(uid string, m *clientv1.Sync) *clientv1.SyncReply {
		t.Helper()
		return dataOf(t, g.ask(g.frame(5, uid, command(clientv1.CommandType_SYNC, m))), clientv1.CommandType_SYNC_REPLY, &clientv1.SyncReply{})
	}
	r := sync("alice", &clientv1.Sync{})
	if len(r.Conversations) != 1 || r.HasMore || r.ServerTimeMs == 0 {
		t.Fatalf("%v", r)
	}
	if c := r.Conversations[0]; c.MaxSeq != 5 || c.PeerDelivered != 5 || c.PeerRead != 4 || c.Unread != 0 {
		t.Errorf("alice sees %v", c)
	}
	if c := sync("bob", &clientv1.Sync{}).Conversations[0]; c.ReadSeq != 4 || c.Unread != 1 || c.MaxSeq != 5 || c.FloorSeq != 0 {
		t.Errorf("bob sees %v", c)
	}
	if r := sync("alice", &clientv1.Sync{SinceMs: time.Now().Add(time.Hour).UnixMilli()}); len(r.Conversations) != 0 {
		t.Errorf("since later: %v", r)
	}
	if e := dataOf(t, g.ask(g.frame(5, "bob", command(clientv1.CommandType_SYNC, &clientv1.Sync{Cursor: "x"}))), clientv1.CommandType_ERROR, &clientv1.Error{}); e.Reason != "bad_message" {
		t.Errorf("bad cursor: %v", e)
	}
}

// told waits until the delivery was told of an ack and of notices.
func (b *bench) told(t *testing.T, ack string, notices ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("ack %s and notices %v", ack, notices), func() bool {
		ok := false
		b.delivery.look(func() {
			ok = slices.Contains(b.delivery.acks, ack)
			for _, n := range notices {
				ok = ok && slices.ContainsFunc(b.delivery.notices, func(s string) bool { return normal(s) == n })
			}
		})
		return ok
	})
}

func TestSyncPages(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	const convs = 400
	want := map[string]bool{}
	for i := range convs {
		to := fmt.Sprintf("%s%03d", strings.Repeat("p", 120), i)
		want["u:alice:"+to] = true
		g.send(g.frame(1, "alice", up(fmt.Sprint(i), to, "x")))
	}
	g.answers(convs)
	pages := 0
	for cursor := ""; ; pages++ {
		a := g.ask(g.frame(1, "alice", command(clientv1.CommandType_SYNC, &clientv1.Sync{Cursor: cursor})))
		if len(a.Payload) > replyBytesMax+1024 {
			t.Errorf("a page has %d bytes", len(a.Payload))
		}
		r := dataOf(t, a, clientv1.CommandType_SYNC_REPLY, &clientv1.SyncReply{})
		for _, c := range r.Conversations {
			if !want[c.ConvId] {
				t.Fatalf("%s twice, or never asked for", c.ConvId)
			}
			delete(want, c.ConvId)
		}
		if !r.HasMore {
			break
		}
		cursor = r.Cursor
	}
	if len(want) > 0 || pages < 1 {
		t.Errorf("%d conversations missing after %d pages", len(want), pages)
	}
}

func TestGroupsAndSubmit(t *testing.T) {
	b := start(t, nil)
	ctx := t.Context()
	api := statev1.NewMessagingClient(b.conn)
	made, err := api.CreateGroup(ctx, &statev1.CreateGroupRequest{Members: []string{"alice", "bob"}})
	if err != nil {
		t.Fatal(err)
	}
	group := made.GroupId
	g := b.gateway("gw-1")
	ack := ackOf(t, g.ask(g.frame(1, "alice", up("1", group, "hello all"))))
	if ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.ConvId != group || ack.Seq != 1 {
		t.Errorf("%v", ack)
	}
	if ack := ackOf(t, g.ask(g.frame(3, "carol", up("1", group, "let me in")))); ack.Status != clientv1.MessageAckStatus_ACK_FAIL || ack.Reason != "not_member" {
		t.Errorf("a stranger: %v", ack)
	}
	if r, err := api.AddMembers(ctx, &statev1.AddMembersRequest{GroupId: group, Members: []string{"carol", "bob"}}); err != nil || r.Added != 1 {
		t.Errorf("add: %v, %v", r, err)
	}
	first, err := api.Submit(ctx, &statev1.SubmitRequest{FromUid: "carol", Uuid: "2", ReceiverId: group, Content: "thanks"})
	if err != nil || first.Seq != 2 || first.ConvId != group || first.Duplicate {
		t.Fatalf("submit: %v, %v", first, err)
	}
	again, err := api.Submit(ctx, &statev1.SubmitRequest{FromUid: "carol", Uuid: "2", ReceiverId: group, Content: "thanks"})
	if err != nil || !again.Duplicate || again.MsgId != first.MsgId || again.ServerAtMs != first.ServerAtMs {
		t.Errorf("submit again: %v, %v", again, err)
	}
	eventually(t, "delivery to the group", func() (ok bool) {
		b.delivery.look(func() {
			ok = len(b.delivery.tasks) == 2 && slices.Equal(b.delivery.tasks[1].Receivers, []string{"alice", "bob", "carol"})
		})
		return ok
	})
	r := dataOf(t, g.ask(g.frame(3, "carol", pull(group, 0, 10))), clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
	if r.FloorSeq != 1 || len(r.Messages) != 1 || r.Messages[0].Seq != 2 {
		t.Errorf("who joined later pulls %v", r)
	}
	g.ask(g.frame(3, "bob", command(clientv1.CommandType_READ, &clientv1.Read{ConvId: group, Seq: 2})))
	b.told(t, "bob/phone "+group+" 2", fmt.Sprintf(`[alice carol bob] but bob/phone READ_NOTICE conv_id:%q uid:"bob" seq:2`, group))
	if l, err := api.ListMembers(ctx, &statev1.ListMembersRequest{GroupId: group, Limit: 2}); err != nil || !slices.Equal(l.Members, []string{"alice", "bob"}) || l.Cursor != "bob" {
		t.Errorf("list: %v, %v", l, err)
	}
	if r, err := api.RemoveMembers(ctx, &statev1.RemoveMembersRequest{GroupId: group, Members: []string{"bob"}}); err != nil || r.Removed != 1 {
		t.Errorf("remove: %v, %v", r, err)
	}
	if ack := ackOf(t, g.ask(g.frame(2, "bob", up("3", group, "still here?")))); ack.Reason != "not_member" {
		t.Errorf("who was removed: %v", ack)
	}
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"no such group":       {second(api.AddMembers(ctx, &statev1.AddMembersRequest{GroupId: "g:x", Members: []string{"a"}})), codes.NotFound},
		"exists":              {second(api.CreateGroup(ctx, &statev1.CreateGroupRequest{GroupId: group})), codes.AlreadyExists},
		"bad group":           {second(api.CreateGroup(ctx, &statev1.CreateGroupRequest{GroupId: "x"})), codes.InvalidArgument},
		"bad member":          {second(api.CreateGroup(ctx, &statev1.CreateGroupRequest{Members: []string{"a b"}})), codes.InvalidArgument},
		"submit: bad sender":  {second(api.Submit(ctx, &statev1.SubmitRequest{FromUid: "", Uuid: "1", ReceiverId: "a"})), codes.InvalidArgument},
		"submit: bad uuid":    {second(api.Submit(ctx, &statev1.SubmitRequest{FromUid: "a", Uuid: "", ReceiverId: "a"})), codes.InvalidArgument},
		"submit: no group":    {second(api.Submit(ctx, &statev1.SubmitRequest{FromUid: "a", Uuid: "1", ReceiverId: "g:x"})), codes.NotFound},
		"submit: not member":  {second(api.Submit(ctx, &statev1.SubmitRequest{FromUid: "a", Uuid: "1", ReceiverId: group})), codes.PermissionDenied},
		"submit: uuid reused": {second(api.Submit(ctx, &statev1.SubmitRequest{FromUid: "carol", Uuid: "2", ReceiverId: group, Content: "x"})), codes.AlreadyExists},
	} {
		if status.Code(c.err) != c.want {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestUnary(t *testing.T) {
	b := start(t, nil)
	api := statev1.NewStateServerClient(b.conn)
	ask := func(seq uint64, payload []byte) (*statev1.DownlinkItem, error) {
		r, err := api.ReceiveMessage(context.Background(), &statev1.ReceiveMessageRequest{Uid: "alice", DeviceId: "d", Incarnation: "gw", ConnId: 1, ConnSeq: seq, Payload: payload})
		return &statev1.DownlinkItem{Payload: r.GetResponsePayload()}, err
	}
	a, err := ask(1, up("1", "bob", "x"))
	if err != nil || ackOf(t, a).Seq != 1 {
		t.Fatalf("%v, %v", a, err)
	}
	if a, err := ask(1, up("1", "bob", "x")); err != nil || len(a.Payload) > 0 {
		t.Errorf("the same frame again: %v, %v", a, err)
	}
	if _, err := ask(2, command(1234, &clientv1.Logout{})); status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown command: %v", err)
	}
	if a, err := ask(3, pull("u:alice:bob", 0, 1)); err != nil || len(dataOf(t, a, clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{}).Messages) != 1 {
		t.Errorf("pull: %v, %v", a, err)
	}
	if r, err := api.Connect(t.Context(), &statev1.ConnectRequest{Uid: "alice", DeviceId: "d"}); err != nil || r.Refused || r.Uid != "alice" {
		t.Errorf("connect: %v, %v", r, err)
	}
	if r, err := api.Connect(t.Context(), &statev1.ConnectRequest{Token: "x"}); err != nil || !r.Refused || r.Reason != "auth_refused" {
		t.Errorf("connect with a token: %v, %v", r, err)
	}
	if _, err := api.Disconnect(t.Context(), &statev1.DisconnectRequest{Incarnation: "gw", ConnId: 1}); err != nil {
		t.Error(err)
	}
	if a, err := ask(1, up("1", "bob", "x")); err != nil || ackOf(t, a).Seq != 1 {
		t.Errorf("after disconnect: %v, %v", a, err)
	}
}
