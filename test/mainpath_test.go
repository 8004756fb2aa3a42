package test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateserver/store"
	"github.com/sluice-im/sluice/test/cluster"
	"github.com/sluice-im/sluice/test/history"
)

// messagesEnv is how many messages each side sends; the gate's number is small, `make mainpath` sends 10,000.
const messagesEnv = "SLUICE_TEST_MESSAGES"

const conversation = "u:alice:bob"

func messages(t *testing.T, standard int) int {
	t.Helper()
	v := os.Getenv(messagesEnv)
	if v == "" {
		return standard
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of messages", messagesEnv, v)
	}
	return n
}

func token(t *testing.T, uid string) string {
	t.Helper()
	claims := jwt.MapClaims{"sub": uid, "exp": time.Now().Add(time.Hour).Unix()}
	s, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(cluster.Secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// limitsUp lets a stop-and-wait client go as fast as it can.
var limitsUp = []string{
	"limits.uplink.messages_per_second=100000", "limits.uplink.messages_burst=100000",
	"limits.uplink.bytes_per_second=100000000", "limits.uplink.bytes_burst=100000000",
	"drain.pre_delay=0s", "drain.window=1s", "limits.handshake.timeout=1m",
}

type system struct {
	redis   *testenv.Server
	state   *cluster.StateServer
	gateway *cluster.Gateway
}

func start(t *testing.T, stateEnv []string, stateSets ...string) *system {
	t.Helper()
	s := &system{redis: testenv.Redis(t)}
	s.state = cluster.StartStateServer(t, s.redis.Addr, stateEnv, stateSets...)
	s.gateway = cluster.StartGateway(t, s.redis.Addr, s.state.GRPC, limitsUp...)
	return s
}

// chat starts one side of a conversation: alice on ws, bob on tcp.
func (s *system) chat(t *testing.T, uid string, args ...string) *cluster.Process {
	t.Helper()
	to, transport := "bob", "ws"
	if uid == "bob" {
		to, transport = "alice", "tcp"
	}
	all := append([]string{"chat", "--url", s.gateway.URL(transport), "--token", token(t, uid), "--device", uid + "-device", "--to", to, "--json"}, args...)
	return cluster.Start(t, uid, cluster.Binary(t, "sluice"), nil, all...)
}

// rows reads the conversation from the store, after the StateServer has ended.
func (s *system) rows(t *testing.T) []store.Message {
	t.Helper()
	s.state.Kill()
	ctx := context.Background()
	db, err := store.Open(ctx, "sqlite://"+s.state.DB, store.Options{Log: slog.New(slog.DiscardHandler), Failpoint: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var rows []store.Message
	err = db.Scan(ctx, conversation, 0, 1<<30, func(m *store.Message) bool {
		rows = append(rows, *m)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// check ends the test's traffic and holds everything against the promises.
func (s *system) check(t *testing.T, n int, alice, bob *cluster.Process) {
	t.Helper()
	for _, p := range []*cluster.Process{alice, bob} {
		if code := p.ExitCode(time.Minute); code != 0 {
			t.Fatalf("%s ended with %d\n%s", p.Name, code, p.Log())
		}
	}
	rows := s.rows(t)
	var clients []history.Client
	for _, p := range []*cluster.Process{alice, bob} {
		events, err := history.Read(p.Out)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, history.Client{UID: p.Name, Events: events})
	}
	for _, err := range history.Check(clients, rows) {
		t.Error(err)
	}
	if len(rows) != 2*n {
		t.Errorf("the store has %d rows, %d were sent", len(rows), 2*n)
	}
	for _, c := range clients {
		count := map[string]int{}
		final := map[string]string{}
		for _, e := range c.Events {
			if e.Event == "state" {
				final[e.UUID] = e.State
			}
		}
		for _, s := range final {
			count[s]++
		}
		t.Logf("%s: final states of own messages: %v", c.UID, count)
		if len(final) != n || count["FAILED"] > 0 {
			t.Errorf("%s: %d messages, final states %v; wanted %d, none FAILED", c.UID, len(final), count, n)
		}
	}
}

func both(n int) []string {
	return []string{"--count", strconv.Itoa(n), "--wait-received", strconv.Itoa(n), "--wait-delivered", "--timeout", "10m"}
}

func TestMessagesEachWay(t *testing.T) {
	n := messages(t, 1000)
	s := start(t, nil)
	began := time.Now()
	alice, bob := s.chat(t, "alice", both(n)...), s.chat(t, "bob", both(n)...)
	for _, p := range []*cluster.Process{alice, bob} {
		p.ExitCode(10 * time.Minute)
	}
	t.Logf("%d messages each way in %v", n, time.Since(began).Round(time.Millisecond))
	s.conserved(t)
	s.check(t, n, alice, bob)
}

// conserved: received = ok + retry + fail + none + lost + in flight.
func (s *system) conserved(t *testing.T) {
	t.Helper()
	m := func(name string) float64 { return cluster.Metric(t, s.gateway.Admin, name) }
	// Three looks, between which an uplink may end: they only add up once nothing moves any more.
	var received, inflight, ended float64
	defer func() {
		if t.Failed() {
			t.Logf("received %.0f, ended %.0f, in flight %.0f", received, ended, inflight)
		}
	}()
	cluster.Eventually(t, time.Minute, "the books add up", func() bool {
		received, inflight, ended = m("sluice_uplinks_received_total"), m("sluice_uplinks_inflight"), m("sluice_uplinks_total")
		return received == ended+inflight
	})
}

// TestKillsInBetween: the gateway dies twice and the StateServer once, while both sides send.
func TestKillsInBetween(t *testing.T) {
	n := messages(t, 400)
	s := start(t, nil)
	// A resend after 5 s would make the test wait, not the promise stronger.
	args := append(both(n), "--resend-timeout", "2s", "--resends", "10")
	alice, bob := s.chat(t, "alice", args...), s.chat(t, "bob", args...)
	reached := func(part int) func() bool {
		return func() bool {
			stored := 0
			for _, p := range []*cluster.Process{alice, bob} {
				b, err := os.ReadFile(p.Out)
				if err != nil {
					return false
				}
				stored += strings.Count(string(b), `"state":"STORED"`)
			}
			return stored >= 2*n*part/4
		}
	}
	for i, kill := range []func(){
		func() { s.gateway.Kill(); s.gateway.Restart() },
		func() { s.state.Kill(); s.state.Restart() },
		func() { s.gateway.Kill(); s.gateway.Restart() },
	} {
		cluster.Eventually(t, 10*time.Minute, fmt.Sprintf("part %d of the messages stored", i+1), reached(i+1))
		kill()
	}
	for _, p := range []*cluster.Process{alice, bob} {
		p.ExitCode(10 * time.Minute)
	}
	s.check(t, n, alice, bob)
}

// TestCrashBetweenCommitAndEnrolment: the receiver is online and idle, the StateServer dies after COMMIT and before anything
// else, and comes back: the message arrives without anybody writing again.
func TestCrashBetweenCommitAndEnrolment(t *testing.T) {
	s := start(t, []string{"SLUICE_FAILPOINT=store.after_commit@3"})
	bob := s.chat(t, "bob", "--count", "1", "--wait-received", "3", "--timeout", "2m")
	cluster.Eventually(t, time.Minute, "bob's own message is stored", func() bool {
		b, err := os.ReadFile(bob.Out)
		return err == nil && strings.Contains(string(b), `"state":"STORED"`)
	})
	// alice's second message is the third commit. She does not resend: her timeout is longer than the test.
	alice := s.chat(t, "alice", "--count", "2", "--resend-timeout", "60s", "--linger")
	select {
	case <-s.state.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the StateServer did not reach its failpoint")
	}
	alice.Kill()
	s.state.Restart()
	s.state.WaitReady()
	began := time.Now()
	cluster.Eventually(t, time.Minute, "bob received the message that was committed before the crash", func() bool {
		b, err := os.ReadFile(bob.Out)
		return err == nil && strings.Count(string(b), `"event":"message"`) == 2
	})
	t.Logf("delivered %v after the StateServer was ready again", time.Since(began).Round(time.Millisecond))
}
