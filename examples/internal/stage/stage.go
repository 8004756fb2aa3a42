// Package stage puts the examples in front of real gateways: it builds and runs them as programs, and plays the users.
package stage

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-im/sluice/test/cluster"
)

// Within bounds every wait; two busy cores and the race detector share the machine.
const Within = 60 * time.Second

// Build builds the example in the test's own directory with the race detector, and gives the program's path.
func Build(t testing.TB) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "example")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	return bin
}

// Token signs a token with the secret of cluster's gateways, as an operator would.
func Token(t testing.TB, uid string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), cluster.Binary(t, "sluice"), "token", "--uid", uid, "--secret", cluster.Secret).Output()
	if err != nil {
		t.Fatalf("sluice token: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// Program is a running program that reads lines and prints lines.
type Program struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	lines []string
	err   error
}

// Run starts a program; it is killed at the end of the test at the latest.
func Run(t testing.TB, bin string, args ...string) *Program {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Program{t: t, cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, in.Text())
			p.mu.Unlock()
		}
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s printed\n%s", strings.Join(cmd.Args, " "), strings.Join(p.Lines(), "\n"))
		}
	})
	return p
}

// Say writes a line to the program.
func (p *Program) Say(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// Lines is what it has printed so far.
func (p *Program) Lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines...)
}

// Await waits until at least n lines begin with prefix, and gives them.
func (p *Program) Await(prefix string, n int) (found []string) {
	p.t.Helper()
	cluster.Eventually(p.t, Within, fmt.Sprintf("%d lines with %q", n, prefix), func() bool {
		found = found[:0]
		for _, l := range p.Lines() {
			if strings.HasPrefix(l, prefix) {
				found = append(found, l)
			}
		}
		return len(found) >= n
	})
	return found
}

// Kill ends it at once.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// End closes the program's input and waits until it has ended well.
func (p *Program) End() {
	p.t.Helper()
	_ = p.stdin.Close()
	select {
	case <-p.ended:
	case <-time.After(Within):
		p.t.Fatalf("it has not ended within %v", Within)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		p.t.Errorf("it ended with: %v", p.err)
	}
}
