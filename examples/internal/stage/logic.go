package stage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/test/cluster"
)

// internalToken is what the gateways of LogicTier ask for on their internal port.
const internalToken = "internal-port-token"

// InternalTokenEnv is the environment in which the example finds it.
const InternalTokenEnv = "SLUICE_INTERNAL_TOKEN=" + internalToken

// LogicTier holds a logic tier that has only ReceiveMessage against what users must see, with two gateways in front of it.
// start runs it on listen, and tells it of one of the two.
func LogicTier(t *testing.T, start func(listen, gateway string) *cluster.Process) {
	t.Helper()
	redis, listen := testenv.Redis(t), testenv.FreeAddr(t)
	// What a busy machine delays is no fault, but for the answers that standStill wants to be late.
	sets := []string{"relay.mode=unary", "internal.token=" + internalToken, "routes.lookup_timeout=10s", "internal.push_timeout=10s",
		"limits.handshake.timeout=1m", "heartbeat.interval=10m", "heartbeat.idle_timeout=30m"}
	a := cluster.NewGateway(t, redis.Addr, listen, sets...)
	b := cluster.NewGateway(t, redis.Addr, listen, sets...)
	tier := start(listen, a.Internal)
	a.WaitReady()
	b.WaitReady()

	alice := Dial(t, a.URL("ws"), "alice", "laptop")
	phone, laptop := Dial(t, a.URL("ws"), "bob", "phone"), Dial(t, b.URL("ws"), "bob", "laptop")

	first := &clientv1.MessageUp{Uuid: "uuid-1", Type: 1, Content: "hello bob", ReceiverId: "bob"}
	ack := say(alice, first)
	if ack.GetStatus() != clientv1.MessageAckStatus_ACK_OK || ack.GetUuid() != "uuid-1" || ack.GetSeq() != 1 || ack.GetConvId() != "u:alice:bob" || ack.GetMsgId() == "" {
		t.Errorf("first answer %v", ack)
	}
	for _, u := range []*User{phone, laptop} {
		hear(t, u, ack, "alice", first)
	}

	// The same uuid again is the same message, and nobody hears of it; the next one is number 2.
	if again := say(alice, first); !proto.Equal(again, ack) {
		t.Errorf("resend: %v, first answer was %v", again, ack)
	}
	second := &clientv1.MessageUp{Uuid: "uuid-2", Type: 7, Content: "grüße, 你好", ReceiverId: "bob", Body: []byte{0, 1, 0xff}}
	ack = say(alice, second)
	if ack.GetSeq() != 2 {
		t.Errorf("second answer %v", ack)
	}
	for _, u := range []*User{phone, laptop} {
		hear(t, u, ack, "alice", second)
	}

	// The way back, into the same conversation.
	reply := &clientv1.MessageUp{Uuid: "uuid-1", Type: 1, Content: "hello alice", ReceiverId: "alice"}
	ack = say(laptop, reply)
	if ack.GetStatus() != clientv1.MessageAckStatus_ACK_OK || ack.GetSeq() != 3 {
		t.Errorf("answer to bob %v", ack)
	}
	hear(t, alice, ack, "bob", reply)

	refusals(t, alice)

	standStill(t, tier, alice, phone)

	// Nobody is there: the sender has his OK, and the logic tier knows.
	ack = say(alice, &clientv1.MessageUp{Uuid: "uuid-3", Type: 1, Content: "hello carol", ReceiverId: "carol"})
	if ack.GetStatus() != clientv1.MessageAckStatus_ACK_OK || ack.GetSeq() != 1 {
		t.Errorf("answer of a message to nobody %v", ack)
	}
	cluster.Eventually(t, Within, "the logic tier told that carol is offline", func() bool {
		return strings.Contains(tier.Log(), "to carol, device \"\": message "+ack.GetMsgId()+": RESULT_OFFLINE")
	})
	tier.Stop()
	if code := tier.ExitCode(Within); code != 0 {
		t.Errorf("the logic tier ended with %d", code)
	}
}

// refusals: the logic tier's "no" is told to the user, and the connection stays.
func refusals(t *testing.T, u *User) {
	t.Helper()
	u.Send(clientv1.CommandType_SYNC, &clientv1.Sync{})
	var e clientv1.Error
	u.Await(clientv1.CommandType_ERROR, &e)
	if e.GetCommand() != clientv1.CommandType_SYNC {
		t.Errorf("SYNC was answered with %v", &e)
	}
	ack := say(u, &clientv1.MessageUp{Uuid: "uuid-g", Type: 1, Content: "to a group", ReceiverId: "g:nobody"})
	if ack.GetStatus() != clientv1.MessageAckStatus_ACK_FAIL || ack.GetReason() != "backend_refused" {
		t.Errorf("a message to a group was answered with %v", ack)
	}
}

// standStill: while the logic tier does nothing, the sender is told to try again; what he sends again arrives once.
func standStill(t *testing.T, tier *cluster.Process, alice, bob *User) {
	t.Helper()
	tier.Signal(syscall.SIGSTOP)
	cluster.Eventually(t, Within, "every thread stopped", func() bool { return stopped(t, tier.PID()) })
	m := &clientv1.MessageUp{Uuid: "uuid-4", Type: 1, Content: "are you there?", ReceiverId: "bob"}
	ack := sayOnce(alice, m)
	if ack.GetStatus() != clientv1.MessageAckStatus_ACK_RETRY {
		t.Errorf("answer of a tier that stands still: %v", ack)
	}
	tier.Signal(syscall.SIGCONT)
	ack = say(alice, m)
	if ack.GetStatus() != clientv1.MessageAckStatus_ACK_OK || ack.GetSeq() != 4 {
		t.Errorf("answer of a tier that goes on: %v", ack)
	}
	hear(t, bob, ack, "alice", m)
	next := &clientv1.MessageUp{Uuid: "uuid-5", Type: 1, Content: "good", ReceiverId: "bob"}
	hear(t, bob, say(alice, next), "alice", next)
}

// stopped reports whether no thread of a process runs: a signal takes its time.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of %d: %v %v", pid, threads, err)
	}
	for _, file := range threads {
		b, err := os.ReadFile(file)
		if err == nil && !strings.Contains(string(b), "State:\tT") {
			return false
		}
	}
	return true
}

// say sends a message, again when it is answered RETRY, and gives its answer.
func say(u *User, m *clientv1.MessageUp) (ack *clientv1.MessageAck) {
	u.t.Helper()
	cluster.Eventually(u.t, Within, "an answer other than RETRY", func() bool {
		ack = sayOnce(u, m) // the gateway holds its RETRYs back, so this does not spin
		return ack.GetStatus() != clientv1.MessageAckStatus_ACK_RETRY
	})
	return ack
}

func sayOnce(u *User, m *clientv1.MessageUp) *clientv1.MessageAck {
	u.t.Helper()
	u.Send(clientv1.CommandType_MESSAGEUP, m)
	ack := &clientv1.MessageAck{}
	u.Await(clientv1.CommandType_MESSAGEACK, ack)
	return ack
}

// hear waits for the next message down, which must be m.
func hear(t *testing.T, u *User, ack *clientv1.MessageAck, from string, m *clientv1.MessageUp) {
	t.Helper()
	got := &clientv1.MessageDown{}
	u.Await(clientv1.CommandType_MESSAGEDOWN, got)
	want := &clientv1.MessageDown{MsgId: ack.GetMsgId(), ConvId: ack.GetConvId(), Seq: ack.GetSeq(), Type: m.GetType(), FromUid: from,
		Content: m.GetContent(), Body: m.GetBody(), ServerAtMs: ack.GetServerAtMs(), Uuid: m.GetUuid()}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
