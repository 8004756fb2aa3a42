// Package cluster runs the real programs for the end-to-end tests: gateways, StateServers and chat clients as processes of
// their own on free loopback ports, so that a test can kill, stop and restart them.
package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// startMax bounds how long a program may take until it is ready, race detector and two busy cores included.
	startMax = 60 * time.Second
	// stopMax bounds a graceful end.
	stopMax = 30 * time.Second
	// fetchMax bounds one look at an admin page.
	fetchMax = 30 * time.Second
	// look is the pause between two looks at a condition.
	look = 20 * time.Millisecond
)

// build is what Binary has built so far.
var build struct {
	mu sync.Mutex
	// Guarded by mu.
	dir  string
	errs map[string]error // by program; nil = built
}

// NoRaceEnv, when it is set, builds the programs without the race detector: for long runs with many messages.
const NoRaceEnv = "SLUICE_TEST_NO_RACE"

// Binary is the path of one of the programs (gateway, stateserver, sluice), built with the race detector when a test run
// asks for it first: to link them all takes longer than many a test.
func Binary(t testing.TB, name string) string {
	t.Helper()
	build.mu.Lock()
	defer build.mu.Unlock()
	err, done := build.errs[name]
	if !done {
		if build.errs == nil {
			build.errs = make(map[string]error)
		}
		err = link(name)
		build.errs[name] = err
	}
	if err != nil {
		t.Fatalf("build %s: %v", name, err)
	}
	return filepath.Join(build.dir, name)
}

// link builds one program. build.mu is held.
func link(name string) (err error) {
	if build.dir == "" {
		if build.dir, err = os.MkdirTemp("", "sluice-bin-"); err != nil {
			return err
		}
	}
	// In the module's own directory: a test in a module of its own (examples) does not name the programs' dependencies.
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/sluice-im/sluice").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	args := []string{"build", "-o", build.dir + "/"}
	if os.Getenv(NoRaceEnv) == "" {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/sluice-im/sluice/cmd/"+name)...)
	cmd.Dir = strings.TrimSpace(string(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// RemoveBinaries is for TestMain, after the last test.
func RemoveBinaries() {
	build.mu.Lock()
	defer build.mu.Unlock()
	if build.dir != "" {
		_ = os.RemoveAll(build.dir)
	}
}

// Process is one running program. Its standard error lies in a log file whose end is printed when the test fails, its
// standard output in a file of its own.
type Process struct {
	Name string
	// Out is the file with the standard output of all runs.
	Out string

	t    testing.TB
	bin  string
	args []string
	env  []string
	log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start runs a program; env is added to the environment.
func Start(t testing.TB, name, bin string, env []string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, t: t, bin: bin, args: args, env: env, log: filepath.Join(t.TempDir(), name+".log")}
	p.Out = strings.TrimSuffix(p.log, ".log") + ".out"
	p.Restart(env...)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("--- log of %s, last lines\n%s", name, tail(p.log, 60))
		}
	})
	return p
}

// Restart runs the program again with the same arguments, after it has ended; env replaces what Start was given.
func (p *Process) Restart(env ...string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var files [2]*os.File
	for i, name := range []string{p.Out, p.log} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			p.t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		files[i] = f
	}
	cmd := exec.Command(p.bin, p.args...)
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("start %s: %v", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
}

// Kill is kill -9; it returns when the process is gone.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Stop is SIGTERM; it fails the test if the process does not end by itself.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

func (p *Process) end(sig syscall.Signal) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	_ = cmd.Process.Signal(sig)
	select {
	case <-done:
	case <-time.After(stopMax):
		_ = cmd.Process.Kill()
		<-done
		p.t.Errorf("%s did not end within %v of signal %v", p.Name, stopMax, sig)
	}
}

// Signal sends a signal, such as SIGSTOP.
func (p *Process) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(sig)
}

// PID is the process id, for looking at /proc.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// ExitCode waits for the end and says how it was; -1 for a signal.
func (p *Process) ExitCode(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.Ended():
	case <-time.After(within):
		p.t.Fatalf("%s runs on after %v\n%s", p.Name, within, tail(p.log, 20))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.ProcessState.ExitCode()
}

// Log is what the process has written so far.
func (p *Process) Log() string {
	b, _ := os.ReadFile(p.log)
	return string(b)
}

func tail(file string, lines int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Eventually fails the test if cond does not come true in time.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(look) // the pause between two looks
	}
}

// Fetch reads an admin page.
func Fetch(ctx context.Context, url string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchMax)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return resp.StatusCode, string(b), err
}
