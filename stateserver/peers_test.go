package stateserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateserver/store"
)

// TestTwoServersOnOneDatabase: both number the same conversation, and one delivers what the other stored when it dies.
func TestTwoServersOnOneDatabase(t *testing.T) {
	redis := testenv.Redis(t)
	dsn := "mysql://" + testenv.MariaDB(t).DSN()
	a := &bench{t: t, redis: redis, delivery: &fakeDelivery{open: make(map[int64]bool)}, cfg: testConfig(redis.Addr, dsn)}
	a.run(nil)
	defer func() { a.stop() }()

	// The other one is a process of its own that dies behind its first commit after the two have worked side by side.
	addr, gone := child(t, dsn, redis.Addr, FailpointCommitted+":21")
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ga, gb := a.gateway("gw-1"), (&bench{t: t, conn: conn}).gateway("gw-1")
	const each = 20
	for i := range each {
		ga.send(ga.frame(1, "alice", up(fmt.Sprintf("a%d", i), "bob", "x")))
		if ack := ackOf(t, gb.ask(gb.frame(2, "bob", up(fmt.Sprintf("b%d", i), "alice", "x")))); ack.Status != clientv1.MessageAckStatus_ACK_OK {
			t.Fatalf("%v", ack)
		}
	}
	ga.answers(each)
	if n := len(a.conversation("u:alice:bob")); n != 2*each {
		t.Fatalf("%d messages, want %d", n, 2*each)
	}
	if err := gb.trySend(gb.frame(2, "bob", up("last", "alice", "x"))); err != nil {
		t.Fatal(err)
	}
	gb.await("the end of the other", func() bool { return gb.ended != nil })
	gone()
	rows := a.conversation("u:alice:bob")
	i := slices.IndexFunc(rows, func(m store.Message) bool { return m.UUID == "last" })
	if i < 0 {
		t.Fatal("the message that was committed last is not there")
	}
	// Nobody writes; the lease of the dead one ends, and its messages are delivered by the one that lives.
	a.delivers([]store.Message{rows[i]})
	a.delivers(slices.DeleteFunc(rows, func(m store.Message) bool { return strings.HasPrefix(m.UUID, "a") }))
}
