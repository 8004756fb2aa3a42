package stateserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// TestRealLargeGroup: a message to 5,000 members, 100 of them online on two gateways: stored once, pushed once to each
// device in a few calls, no entries for resends.
func TestRealLargeGroup(t *testing.T) {
	b, p := startReal(t, nil)
	g := b.gateway("gw-1")
	api := statev1.NewMessagingClient(b.conn)
	members := names("m", 5000)
	if _, err := api.CreateGroup(t.Context(), &statev1.CreateGroupRequest{GroupId: "g:all", Members: members}); err != nil {
		t.Fatal(err)
	}
	edges := []*edge{newEdge(t, p, "gw-1"), newEdge(t, p, "gw-2")}
	const online = 100
	for i := range online {
		edges[i%2].connect(members[i*50] + "/phone")
	}
	edges[0].connect("m0/laptop")
	edges[1].connect("stranger/phone")
	before := [2]int{}
	for i, e := range edges {
		e.look(func() { before[i] = e.calls })
	}
	ack := g.say("m0/phone", "1", "g:all", "hello all")
	if ack.ConvId != "g:all" || ack.Seq != 1 {
		t.Fatalf("%v", ack)
	}
	for i := range online {
		d := members[i*50] + "/phone"
		if d == "m0/phone" {
			d = "m0/laptop"
		}
		eventually(t, "the message at "+d, func() bool { return slices.Equal(edges[i%2].texts(d), []string{"hello all"}) })
	}
	total := 0
	for i, e := range edges {
		e.look(func() {
			total += len(e.pushes)
			if n := e.calls - before[i]; n > 4 {
				t.Errorf("%d calls for one message at gateway %d", n, i)
			}
			for _, a := range e.pushes {
				if a.uid == "stranger" || a.uid+"/"+a.device == "m0/phone" {
					t.Errorf("%s/%s got it", a.uid, a.device)
				}
			}
		})
	}
	if total != online {
		t.Errorf("%d devices got it, want %d", total, online)
	}
	if n := p.unacked(t); n != 0 {
		t.Errorf("%d entries for resends of a group above the bound", n)
	}
	if rows := b.conversation("g:all"); len(rows) != 1 {
		t.Errorf("stored %d times", len(rows))
	}
	// Receipts of such a group are told to nobody; who was offline pulls.
	g.ask(g.from("m50/phone", command(clientv1.CommandType_READ, &clientv1.Read{ConvId: "g:all", Seq: 1})))
	r := dataOf(t, g.ask(g.from("m1/phone", pull("g:all", 0, 10))), clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
	if len(r.Messages) != 1 || r.Messages[0].Content != "hello all" {
		t.Errorf("who was offline pulls %v", r)
	}
	if got := edges[0].notices("m0/laptop"); len(got) > 0 {
		t.Errorf("the sender was told %q", got)
	}
}

// TestRealGroupMembersComeAndGo: who joins sees what comes from then on, who leaves sees nothing more, and strangers are
// told the truth; messages of a small group are enrolled for every device until it acks.
func TestRealGroupMembersComeAndGo(t *testing.T) {
	b, p := startReal(t, nil)
	g, e := b.gateway("gw-1"), newEdge(t, p, "gw-1")
	api := statev1.NewMessagingClient(b.conn)
	if _, err := api.CreateGroup(t.Context(), &statev1.CreateGroupRequest{GroupId: "g:team", Members: []string{"alice", "bob"}}); err != nil {
		t.Fatal(err)
	}
	e.connect("alice/phone", "alice/laptop", "bob/phone", "carol/phone")
	arrives := func(device string, want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%q at %s", want, device), func() bool { return slices.Equal(e.texts(device), want) })
	}
	g.say("alice/phone", "1", "g:team", "one")
	arrives("bob/phone", "one")
	arrives("alice/laptop", "one")
	refused := func(device, to, why string) {
		t.Helper()
		ack := ackOf(t, g.ask(g.from(device, up("x-"+device, to, "let me in"))))
		if ack.Status != clientv1.MessageAckStatus_ACK_FAIL || ack.Reason != why {
			t.Errorf("%s to %s: %v", device, to, ack)
		}
	}
	refused("carol/phone", "g:team", "not_member")
	refused("carol/phone", "g:nobody", "no_such_group")
	if _, err := api.AddMembers(t.Context(), &statev1.AddMembersRequest{GroupId: "g:team", Members: []string{"carol"}}); err != nil {
		t.Fatal(err)
	}
	g.say("bob/phone", "2", "g:team", "two")
	arrives("carol/phone", "two")
	arrives("alice/phone", "two")
	r := dataOf(t, g.ask(g.from("carol/phone", pull("g:team", 0, 10))), clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
	if r.FloorSeq != 1 || len(r.Messages) != 1 || r.Messages[0].Content != "two" {
		t.Errorf("who joined pulls %v", r)
	}
	if _, err := api.RemoveMembers(t.Context(), &statev1.RemoveMembersRequest{GroupId: "g:team", Members: []string{"bob"}}); err != nil {
		t.Fatal(err)
	}
	refused("bob/phone", "g:team", "not_member")
	g.say("alice/phone", "3", "g:team", "three")
	arrives("carol/phone", "two", "three")
	a := g.ask(g.from("bob/phone", pull("g:team", 0, 10)))
	if e := dataOf(t, a, clientv1.CommandType_ERROR, &clientv1.Error{}); e.Reason != "not_member" || e.ConvId != "g:team" {
		t.Errorf("who was removed pulls %v", e)
	}
	if s := dataOf(t, g.ask(g.from("bob/phone", command(clientv1.CommandType_SYNC, &clientv1.Sync{}))), clientv1.CommandType_SYNC_REPLY, &clientv1.SyncReply{}); len(s.Conversations) != 0 {
		t.Errorf("who was removed syncs %v", s)
	}
	arrives("bob/phone", "one")
	if p.unacked(t) == 0 {
		t.Error("nothing is enrolled for a small group")
	}
	for _, d := range []string{"alice/phone", "alice/laptop", "carol/phone"} {
		g.send(g.from(d, command(clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: "g:team", Seq: 3})))
	}
	told := fmt.Sprintf("DELIVERED_NOTICE conv_id:%q uid:%q seq:3", "g:team", "carol")
	eventually(t, "carol's receipt at alice", func() bool { return slices.Contains(e.notices("alice/phone"), told) })
}

// TestRealSubmit: a bot's message is delivered like any other, once, however often it is submitted.
func TestRealSubmit(t *testing.T) {
	b, p := startReal(t, nil)
	e := newEdge(t, p, "gw-1")
	api := statev1.NewMessagingClient(b.conn)
	e.connect("bob/phone", "bot/console")
	in := &statev1.SubmitRequest{FromUid: "bot", Uuid: "deploy-1", ReceiverId: "bob", Type: 7, Content: "deployed", Body: []byte{1, 2}}
	first, err := api.Submit(t.Context(), in)
	if err != nil || first.Duplicate || first.Seq != 1 || first.ConvId != "u:bob:bot" || first.MsgId == "" {
		t.Fatalf("%v, %v", first, err)
	}
	for range 3 {
		again, err := api.Submit(t.Context(), in)
		if err != nil || !again.Duplicate || again.MsgId != first.MsgId || again.Seq != 1 {
			t.Errorf("again: %v, %v", again, err)
		}
	}
	// A bot has no sending device: all of its own get it.
	for _, d := range []string{"bob/phone", "bot/console"} {
		eventually(t, "the message at "+d, func() bool { return slices.Equal(e.texts(d), []string{"deployed"}) })
	}
	e.look(func() {
		if m := e.pushes[0].down; m.FromUid != "bot" || m.Type != 7 || string(m.Body) != "\x01\x02" || m.Uuid != "deploy-1" {
			t.Errorf("%v", m)
		}
	})
	if n := len(b.conversation("u:bob:bot")); n != 1 {
		t.Errorf("stored %d times", n)
	}
}

// TestGroupChangesWhileAMessageIsOnItsWay: the list of members that a message was checked against is not the one when it is
// numbered. It is refused with RETRY, and comes again to those who are in.
func TestGroupChangesWhileAMessageIsOnItsWay(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	if err := b.store.CreateGroup(t.Context(), "g:x", []string{"alice", "bob"}, 1); err != nil {
		t.Fatal(err)
	}
	if ack := ackOf(t, g.ask(g.frame(1, "alice", up("1", "g:x", "one")))); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Fatalf("%v", ack)
	}
	// As another StateServer would: this one's cache does not hear of it.
	if _, err := b.store.AddMembers(t.Context(), "g:x", []string{"carol"}, 2); err != nil {
		t.Fatal(err)
	}
	b.groups.mu.Lock()
	l := b.groups.lists["g:x"]
	l.until = l.until.Add(waitMax)
	b.groups.lists["g:x"] = l
	b.groups.mu.Unlock()
	ack := ackOf(t, g.ask(g.frame(1, "alice", up("2", "g:x", "two"))))
	if ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "members_changed" {
		t.Fatalf("with an old list: %v", ack)
	}
	if ack := ackOf(t, g.ask(g.frame(1, "alice", up("2", "g:x", "two")))); ack.Status != clientv1.MessageAckStatus_ACK_OK || ack.Seq != 2 {
		t.Fatalf("again: %v", ack)
	}
	eventually(t, "delivery", func() (ok bool) {
		b.delivery.look(func() { ok = len(b.delivery.tasks) == 2 })
		return ok
	})
	b.delivery.look(func() {
		if got := b.delivery.tasks[1].Receivers; !slices.Equal(got, []string{"alice", "bob", "carol"}) {
			t.Errorf("delivered to %s", strings.Join(got, " "))
		}
	})
}
