package stateserver

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/internal/testenv/leaks"
	"github.com/sluice-im/sluice/stateserver/store"
)

// Environment of a child: this test binary run as a server that ends itself with SIGKILL.
const (
	childDSN   = "SLUICE_TEST_CHILD_DSN"
	childRedis = "SLUICE_TEST_CHILD_REDIS"
	childDie   = "SLUICE_TEST_CHILD_DIE"  // name:n, the failpoint and at which of its calls
	childReal  = "SLUICE_TEST_CHILD_REAL" // with the real delivery
	childHook  = "SLUICE_TEST_CHILD_HOOK" // the target of both hooks
)

func TestMain(m *testing.M) {
	if os.Getenv(childDSN) != "" {
		runChild()
		return
	}
	logging.Disable() // killed servers are part of the tests
	leaks.Main(m)
}

func runChild() {
	cfg := Default()
	cfg.GRPC.Addr, cfg.Admin.Addr = "127.0.0.1:0", ""
	cfg.Store.DSN, cfg.Redis.Addrs = os.Getenv(childDSN), []string{os.Getenv(childRedis)}
	cfg.Store.Wait, cfg.Dedup.Timeout = waitMax, time.Second // what a busy machine delays is no fault
	point, at, _ := strings.Cut(os.Getenv(childDie), ":")
	n, _ := strconv.Atoi(at)
	var calls atomic.Int64
	deps := Deps{
		Delivery: func(DeliveryParts) (Delivery, error) { return &fakeDelivery{open: make(map[int64]bool)}, nil },
		Failpoint: func(name string) {
			if name == point && calls.Add(1) == int64(n) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	}
	if os.Getenv(childReal) != "" {
		p, _, err := connectReal(cfg.Redis.Addrs[0])
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		p.use(&cfg, &deps)
		cfg.Hooks.Stored, cfg.Hooks.Offline = os.Getenv(childHook), os.Getenv(childHook)
	}
	_ = patientRedis(cfg, &deps) // ends with the process
	s, err := New(context.Background(), cfg, deps)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	s.patient()
	fmt.Println("addr", s.Addr())
	fmt.Println(s.Run(context.Background()))
}

// child starts a server process and returns its address; wait returns when it is gone.
func child(t *testing.T, dsn, redis, die string) (addr string, wait func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDSN+"="+dsn, childRedis+"="+redis, childDie+"="+die)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wait = func() { _ = cmd.Wait() }
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "addr ") {
		t.Fatalf("child said %q, %v", line, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "addr ")), wait
}

// TestKilledAtEachStep ends the process at every step of persistence. What was acked is there after the restart, with its
// number; numbers are dense; a resend of everything stores each uuid once; and what was stored and not handed over to the
// delivery is handed over by the next run without anybody writing.
func TestKilledAtEachStep(t *testing.T) {
	for _, die := range []string{
		FailpointInserted + ":3", FailpointCommit + ":3", FailpointCommitted + ":1", FailpointCommitted + ":3", FailpointReply + ":40",
	} {
		t.Run(die, func(t *testing.T) {
			redis := testenv.Redis(t)
			dsn := "sqlite://" + filepath.Join(t.TempDir(), "sluice.db")
			addr, gone := child(t, dsn, redis.Addr, die)
			conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			g := (&bench{t: t, conn: conn}).gateway("gw-1")
			const messages = 2000
			sent := 0
			for ; sent < messages; sent++ {
				// One frame a batch, so that the child has many transactions to die in.
				item := g.frame(1, "alice", up(fmt.Sprintf("m%d", sent), "bob", fmt.Sprint(sent)))
				if g.trySend(item) != nil {
					break
				}
			}
			g.await("the end of the stream", func() bool { return g.ended != nil })
			gone()

			b := &bench{t: t, redis: redis, delivery: &fakeDelivery{open: make(map[int64]bool)}, cfg: testConfig(redis.Addr, dsn)}
			b.run(nil)
			defer b.stop()
			rows := b.conversation("u:alice:bob")
			acked := 0
			for _, a := range g.got {
				ack := ackOf(t, a)
				if ack.Status != clientv1.MessageAckStatus_ACK_OK {
					continue
				}
				acked++
				if ack.Seq > int64(len(rows)) || rows[ack.Seq-1].UUID != ack.Uuid || strconv.FormatInt(rows[ack.Seq-1].MsgID, 10) != ack.MsgId {
					t.Fatalf("acked and not there: %v", ack)
				}
			}
			t.Logf("sent %d, acked %d, stored %d", sent, acked, len(rows))
			b.delivers(rows)
			b.resend(sent, rows)
		})
	}
}

// delivers waits until the delivery was given all of rows.
func (b *bench) delivers(rows []store.Message) {
	b.t.Helper()
	eventually(b.t, "delivery of what was stored before the crash", func() bool {
		given := map[int64]bool{}
		b.delivery.look(func() {
			for _, k := range b.delivery.tasks {
				given[k.Message.MsgID] = true
			}
		})
		for _, m := range rows {
			if !given[m.MsgID] {
				return false
			}
		}
		return true
	})
}

// resend sends everything again and looks that each uuid is stored once, at its old place.
func (b *bench) resend(sent int, before []store.Message) {
	b.t.Helper()
	g := b.gateway("gw-2")
	for i := range sent {
		g.send(g.frame(1, "alice", up(fmt.Sprintf("m%d", i), "bob", fmt.Sprint(i))))
	}
	for _, a := range g.answers(sent) {
		if ack := ackOf(b.t, a); ack.Status != clientv1.MessageAckStatus_ACK_OK {
			b.t.Fatalf("resend got %v", ack)
		}
	}
	after := b.conversation("u:alice:bob")
	if len(after) != sent {
		b.t.Errorf("%d rows for %d uuids", len(after), sent)
	}
	for i, m := range before {
		if after[i].UUID != m.UUID || after[i].MsgID != m.MsgID {
			b.t.Fatalf("number %d was %s and is %s", i+1, m.UUID, after[i].UUID)
		}
	}
}
