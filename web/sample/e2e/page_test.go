// Package e2e opens the sample page in a real browser in front of a real system. It is a module of its own, so that the
// product's list of dependencies does not hold a browser driver.
package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/test/cluster"
)

// within bounds every wait; two busy cores, the race detector and a browser share the machine.
const within = 60 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinaries()
	os.Exit(code)
}

// system is a running `sluice dev` whose addresses stay the same over a restart.
type system struct {
	*cluster.Process
	t *testing.T
}

func startSystem(t *testing.T) *system {
	t.Helper()
	args := []string{"dev", "--dir", filepath.Join(t.TempDir(), "data"), "--log", "info"}
	for _, flag := range []string{"ws", "tcp", "page", "internal", "admin", "stateserver", "stateserver-admin"} {
		args = append(args, "--"+flag, testenv.FreeAddr(t))
	}
	return &system{cluster.Start(t, "sluice", cluster.Binary(t, "sluice"), nil, args...), t}
}

var pageLine = regexp.MustCompile(`(?m)^  page +(http://\S+)`)

// page waits until the system is there, and gives the address that it prints.
func (s *system) page() (url string) {
	s.t.Helper()
	cluster.Eventually(s.t, within, "the page's address printed", func() bool {
		out, err := os.ReadFile(s.Out)
		if err != nil {
			s.t.Fatal(err)
		}
		m := pageLine.FindSubmatch(out)
		if m != nil {
			url = string(m[1])
		}
		return m != nil
	})
	return url
}

func TestSamplePage(t *testing.T) {
	s := startSystem(t)
	b := open(t, s.page())
	alice, bob := b.pane("alice"), b.pane("bob")
	alice.online()
	bob.online()

	// Both ways, with all states.
	alice.write("hello bob")
	alice.own("hello bob", "DELIVERED")
	bob.shows("hello bob")
	bob.write("hello alice")
	bob.own("hello alice", "DELIVERED")
	alice.shows("hello alice")

	// The receiver's line is cut: stored, not delivered, until he is back.
	bob.toggle()
	alice.write("are you there?")
	alice.own("are you there?", "STORED")
	bob.write("I was in a tunnel")
	bob.own("I was in a tunnel", "LOCAL")
	b.screenshot("cut.png")
	bob.toggle()
	bob.online()
	bob.own("I was in a tunnel", "DELIVERED")
	alice.own("are you there?", "DELIVERED")

	// Nobody answers: the page sends again with the same uuid, and the message is there once.
	s.Signal(stopped)
	alice.write("twice on the wire")
	alice.own("twice on the wire", "SENT")
	b.sentAgain("twice on the wire")
	s.Signal(continued)
	alice.own("twice on the wire", "DELIVERED")

	// The system dies and comes back: the panes find it by themselves.
	s.Kill()
	bob.write("written to nobody")
	s.Restart()
	bob.own("written to nobody", "DELIVERED")
	alice.shows("written to nobody")

	all := []string{"hello bob", "hello alice", "are you there?", "I was in a tunnel", "twice on the wire", "written to nobody"}
	alice.holds(all)
	bob.holds(all)
	sameOrder(t, alice, bob)
	b.screenshot("page.png")

	// A new page knows nothing: SYNC and PULL bring everything, with what was delivered.
	b.reload()
	alice.holds(all)
	bob.holds(all)
	sameOrder(t, alice, bob)
	alice.own("hello bob", "DELIVERED")
	bob.own("hello alice", "DELIVERED")
	b.clean()
}
