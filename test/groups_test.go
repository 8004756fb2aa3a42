package test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-im/sluice/test/cluster"
	"github.com/sluice-im/sluice/test/history"
)

// device starts `sluice chat` for one device of a user.
func (s *system) device(t *testing.T, uid, device, to string, args ...string) *cluster.Process {
	t.Helper()
	all := []string{"chat", "--url", s.gateway.URL("ws"), "--token", token(t, uid), "--device", device, "--to", to, "--json", "--timeout", "5m"}
	return cluster.Start(t, uid+"-"+device, cluster.Binary(t, "sluice"), nil, append(all, args...)...)
}

// group runs `sluice group` and returns what it prints.
func (s *system) group(t *testing.T, want int, args ...string) string {
	t.Helper()
	p := cluster.Start(t, "group", cluster.Binary(t, "sluice"), nil, append([]string{"group", "--addr", s.state.GRPC, "--timeout", "1m"}, args...)...)
	if code := p.ExitCode(2 * time.Minute); code != want {
		t.Fatalf("sluice group %v ended with %d, want %d\n%s", args, code, want, p.Log())
	}
	return output(t, p)
}

// seen are the messages that a device showed, in their order.
func seen(t *testing.T, p *cluster.Process) []history.Event {
	t.Helper()
	events, err := history.Read(p.Out)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e history.Event) bool { return e.Event != "message" })
}

func (s *system) connected(t *testing.T, want float64) {
	t.Helper()
	cluster.Eventually(t, time.Minute, "connections", func() bool {
		return cluster.Metric(t, s.gateway.Admin, "sluice_connections") >= want
	})
}

// TestGroupAndTwoDevices: a group is made with `sluice group`; a user writes into it from two devices at once. Everybody
// shows the same messages in the order of their numbers, a device its own ones once, as states and not as messages.
func TestGroupAndTwoDevices(t *testing.T) {
	s := start(t, nil)
	if got := s.group(t, 0, "create", "g:team", "alice", "bob"); strings.TrimSpace(got) != "g:team" {
		t.Errorf("create says %q", got)
	}
	s.group(t, 1, "create", "g:team", "alice")
	s.group(t, 1, "add", "g:nobody", "alice")
	s.group(t, 2, "add", "team", "alice")
	if got := s.group(t, 0, "add", "g:team", "carol", "bob"); strings.TrimSpace(got) != "added 1" {
		t.Errorf("add says %q", got)
	}
	if got := s.group(t, 0, "members", "g:team"); got != "alice\nbob\ncarol\n" {
		t.Errorf("members says %q", got)
	}
	if got := s.group(t, 0, "remove", "g:team", "carol"); strings.TrimSpace(got) != "removed 1" {
		t.Errorf("remove says %q", got)
	}
	const n = 50
	count, own, all := strconv.Itoa(n), strconv.Itoa(n), strconv.Itoa(2*n)
	bob := s.device(t, "bob", "phone", "g:team", "--wait-received", all, "--mark-read")
	carol := s.device(t, "carol", "phone", "g:team", "--wait-received", "1")
	s.connected(t, 2)
	phone := s.device(t, "alice", "phone", "g:team", "--count", count, "--wait-received", own)
	laptop := s.device(t, "alice", "laptop", "g:team", "--count", count, "--wait-received", own)
	for _, p := range []*cluster.Process{phone, laptop, bob} {
		if code := p.ExitCode(5 * time.Minute); code != 0 {
			t.Fatalf("%s ended with %d\n%s", p.Name, code, p.Log())
		}
	}
	carol.Stop()
	if got := seen(t, carol); len(got) > 0 {
		t.Errorf("who was removed got %v", got)
	}
	uuids := map[string]bool{}
	for i, e := range seen(t, bob) {
		if e.Seq != int64(i+1) || e.From != "alice" || e.Conv != "g:team" || uuids[e.UUID] {
			t.Fatalf("bob's message %d is %+v", i, e)
		}
		uuids[e.UUID] = true
	}
	if len(uuids) != 2*n {
		t.Errorf("bob has %d messages", len(uuids))
	}
	total := map[string]bool{}
	for _, p := range []*cluster.Process{phone, laptop} {
		got := seen(t, p)
		if len(got) != n || !slices.IsSortedFunc(got, func(a, b history.Event) int { return int(a.Seq - b.Seq) }) {
			t.Errorf("%s shows %d messages of the other device, or not in their order", p.Name, len(got))
		}
		for i, e := range got {
			if e.From != "alice" || total[e.UUID] || e.Text != fmt.Sprint(i+1) {
				t.Errorf("%s: %+v", p.Name, e)
			}
			total[e.UUID] = true
		}
	}
	if len(total) != 2*n {
		t.Errorf("the two devices have %d messages of each other", len(total))
	}
}

// TestReadOnOneDevice: what one device has read, the other one learns at once when it is connected, and by SYNC when it
// was not; the sender sees READ.
func TestReadOnOneDevice(t *testing.T) {
	s := start(t, nil)
	const n = 5
	bob := s.device(t, "bob", "laptop", "alice", "--linger")
	s.connected(t, 1)
	alice := s.device(t, "alice", "phone", "bob", "--count", strconv.Itoa(n), "--linger")
	cluster.Eventually(t, time.Minute, "the messages at bob's laptop", func() bool { return len(seen(t, bob)) == n })
	unread := s.device(t, "bob", "tablet", "alice", "--linger")
	cluster.Eventually(t, time.Minute, "what is unread", func() bool { return shows(t, unread, `"event":"standing"`, `"unread":5`) })
	reader := s.device(t, "bob", "phone", "alice", "--wait-received", strconv.Itoa(n), "--mark-read")
	if code := reader.ExitCode(2 * time.Minute); code != 0 {
		t.Fatalf("reader ended with %d\n%s", code, reader.Log())
	}
	for _, p := range []*cluster.Process{bob, unread} {
		cluster.Eventually(t, time.Minute, "the notice at "+p.Name, func() bool { return shows(t, p, `"event":"receipt"`, `"uid":"bob"`, `"seq":5`, `"state":"READ"`) })
	}
	cluster.Eventually(t, time.Minute, "READ at alice", func() bool { return shows(t, alice, `"event":"state"`, `"seq":5`, `"state":"READ"`) })
	later := s.device(t, "bob", "watch", "alice", "--linger")
	cluster.Eventually(t, time.Minute, "where bob is, by SYNC", func() bool { return shows(t, later, `"event":"standing"`, `"read_seq":5`) })
	for _, p := range []*cluster.Process{bob, unread, alice, later} {
		p.Stop()
	}
}

// shows says whether a process has printed one line with all of parts.
func shows(t *testing.T, p *cluster.Process, parts ...string) bool {
	t.Helper()
	for line := range strings.Lines(output(t, p)) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			return true
		}
	}
	return false
}

func output(t *testing.T, p *cluster.Process) string {
	t.Helper()
	out, err := os.ReadFile(p.Out)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
