package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/examples/internal/stage"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/test/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinaries()
	os.Exit(code)
}

// noTimeout keeps the client's own timer out of a test, in which every resend must have been asked for.
const noTimeout = "-timeout=1h"

// settled is one message as the client tells of it.
type settled struct {
	outcome, uuid, content string
	sends, retries         int
}

// told reads what the client printed of its messages, in the order in which they were settled.
func told(t *testing.T, lines []string) (all []settled) {
	t.Helper()
	retries := map[string]int{}
	for _, l := range lines {
		word, rest, _ := strings.Cut(l, " ")
		switch word {
		case "retry":
			retries[rest]++
		case "ok", "failed":
			m := settled{outcome: word}
			if _, err := fmt.Sscanf(rest, "%s sends=%d", &m.uuid, &m.sends); err != nil {
				t.Fatalf("%q: %v", l, err)
			}
			m.retries, m.content = retries[m.uuid], strings.SplitN(rest, " ", 3)[2]
			all = append(all, m)
		}
	}
	return all
}

func say(p *stage.Program, what string, n int) (texts []string) {
	for i := range n {
		texts = append(texts, fmt.Sprintf("%s %d", what, i))
		p.Say(texts[i])
	}
	return texts
}

// In front of the reference logic tier: every message is OK once, and the receiver's history has it once, in order.
func TestInFrontOfTheStateServer(t *testing.T) {
	redis, bin := testenv.Redis(t), stage.Build(t)
	s := cluster.StartStateServer(t, redis.Addr, nil)
	for _, mode := range []string{"stream", "unary"} {
		t.Run(mode, func(t *testing.T) {
			g := cluster.StartGateway(t, redis.Addr, s.GRPC, "relay.mode="+mode)
			from, to := "1001."+mode, "1002."+mode
			p := stage.Run(t, bin, "-url", g.URL("ws"), "-token", stage.Token(t, from), "-to", to, noTimeout)
			want := say(p, "message", 20)
			p.End()
			for _, m := range told(t, p.Lines()) {
				if m.outcome != "ok" || m.sends != 1+m.retries {
					t.Errorf("%+v", m)
				}
			}
			u := stage.Dial(t, g.URL("ws"), to, "phone")
			u.Send(clientv1.CommandType_PULL, &clientv1.Pull{ConvId: "u:" + from + ":" + to, Limit: 100})
			var reply clientv1.PullReply
			u.Await(clientv1.CommandType_PULL_REPLY, &reply)
			var stored []string
			for _, m := range reply.GetMessages() {
				stored = append(stored, m.GetContent())
			}
			if !slices.Equal(stored, want) {
				t.Errorf("stored %q, want %q", stored, want)
			}
		})
	}
}

// Whatever the logic tier does with the first frame of each message, the message is finally OK once, and no message is sent
// more often than the client was asked to: not while the trouble lasts, and not afterwards.
func TestTroubleOfTheLogicTier(t *testing.T) {
	redis, bin := testenv.Redis(t), stage.Build(t)
	cases := map[string]trouble{
		"none":        {},
		"late":        {wait: 400 * time.Millisecond},
		"retry":       {retry: true},
		"unavailable": {code: codes.Unavailable},
		"unknown":     {code: codes.Unknown},
		"exhausted":   {code: codes.ResourceExhausted},
		"mute":        {mute: true},
	}
	for _, mode := range []string{"stream", "unary"} {
		t.Run(mode, func(t *testing.T) {
			tr, addr := startTier(t)
			g := cluster.StartGateway(t, redis.Addr, addr, "relay.mode="+mode)
			t.Run("cases", func(t *testing.T) {
				for name, tb := range cases {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						uid := name + "." + mode
						p := stage.Run(t, bin, "-url", g.URL("ws"), "-token", stage.Token(t, uid), "-to", "1002", noTimeout)
						const each = 4
						tr.meet(uid, tb)
						want := say(p, "in trouble", each)
						p.Await("ok ", each)
						tr.meet(uid, trouble{})
						want = append(want, say(p, "afterwards", each)...)
						p.End()
						checkTold(t, tr, told(t, p.Lines()), want, tb)
						if got := tr.storedOf(uid); !slices.Equal(got, want) {
							t.Errorf("stored %q, want %q", got, want)
						}
					})
				}
			})
			checkMetrics(t, g, mode)
		})
	}
}

func checkTold(t *testing.T, tr *tier, all []settled, want []string, tb trouble) {
	t.Helper()
	if len(all) != len(want) {
		t.Fatalf("%d messages settled, want %d: %+v", len(all), len(want), all)
	}
	for i, m := range all {
		if m.outcome != "ok" || m.content != want[i] {
			t.Errorf("message %d: %+v, want %q", i, m, want[i])
		}
		if m.sends != 1+m.retries {
			t.Errorf("%q was sent %d times, the client was asked for %d", m.content, m.sends, 1+m.retries)
		}
		if n := tr.seen(m.uuid); n > m.sends {
			t.Errorf("%q came %d times, and was sent %d times", m.content, n, m.sends)
		}
		if i < len(want)/2 && tb != (trouble{}) && m.retries == 0 {
			t.Errorf("%q met no trouble", m.content)
		}
	}
}

// checkMetrics holds the gateway's own books against the promise: every uplink was answered once, and what came too late
// was dropped and counted.
func checkMetrics(t *testing.T, g *cluster.Gateway, mode string) {
	t.Helper()
	value := func(name string, labels ...string) float64 { return cluster.Metric(t, g.Admin, name, labels...) }
	cluster.Eventually(t, stage.Within, "nothing in flight", func() bool { return value("sluice_uplinks_inflight") == 0 })
	if mode == "stream" { // a unary call ends with its deadline
		cluster.Eventually(t, stage.Within, "answers that came late", func() bool { return value("sluice_answers_late_total") > 0 })
	}
	received := value("sluice_uplinks_received_total")
	ok, retry, rest := value("sluice_uplinks_total", `result="ok"`), value("sluice_uplinks_total", `result="retry"`), 0.0
	for _, r := range []string{"fail", "none", "lost"} {
		rest += value("sluice_uplinks_total", `result="`+r+`"`)
	}
	if received != ok+retry || rest != 0 {
		t.Errorf("received %v, ok %v, retry %v, others %v", received, ok, retry, rest)
	}
}

// A status that says "no effect" is told to the user as failed, and the next message goes on its way.
func TestRefused(t *testing.T) {
	redis, bin := testenv.Redis(t), stage.Build(t)
	tr, addr := startTier(t)
	g := cluster.StartGateway(t, redis.Addr, addr, "relay.mode=unary")
	tr.meet("1001", trouble{code: codes.PermissionDenied})
	p := stage.Run(t, bin, "-url", g.URL("ws"), "-token", stage.Token(t, "1001"), "-to", "1002", noTimeout)
	p.Say("no")
	p.Await("failed ", 1)
	tr.meet("1001", trouble{})
	p.Say("yes")
	p.End()
	all := told(t, p.Lines())
	if len(all) != 2 || all[0].outcome != "failed" || all[1].outcome != "ok" || all[0].sends != 1 || all[1].sends != 1 {
		t.Errorf("%+v", all)
	}
}

// What was not answered survives the program, and is sent with the same uuid.
func TestPendingFile(t *testing.T) {
	redis, bin, file := testenv.Redis(t), stage.Build(t), t.TempDir()+"/pending.json"
	tr, addr := startTier(t)
	g := cluster.StartGateway(t, redis.Addr, addr, "relay.mode=unary", "relay.timeout=60s")
	args := []string{"-url", g.URL("ws"), "-token", stage.Token(t, "1001"), "-to", "1002", "-pending", file, noTimeout}
	tr.meet("1001", trouble{mute: true})
	p := stage.Run(t, bin, args...)
	want := say(p, "kept", 3)
	uuid := strings.TrimPrefix(p.Await("sent ", 1)[0], "sent ")
	cluster.Eventually(t, stage.Within, "three messages in the file", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && strings.Count(string(b), "uuid") == 3
	})
	p.Kill()
	tr.meet("1001", trouble{})

	p = stage.Run(t, bin, args...)
	p.End()
	if all := told(t, p.Lines()); len(all) != 3 || all[0].uuid != uuid {
		t.Errorf("after the restart: %+v, first uuid was %s", all, uuid)
	}
	if got := tr.storedOf("1001"); !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}
