// Package testenv starts the real servers that tests run against, each on a free loopback port with a data directory of
// its own, and stops them when the test ends.
package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// startMax bounds how long a server may take until it answers.
const startMax = 60 * time.Second

// Server is one running server process.
type Server struct {
	// Addr is host:port.
	Addr string
	// Dir is its data directory; it outlives Kill, so that Start finds the same data.
	Dir string

	t     testing.TB
	bin   string
	args  []string
	ready func(addr string) error

	mu  sync.Mutex
	cmd *exec.Cmd
}

// Redis starts a redis-server; args are added to its command line (for example "--appendonly", "yes").
func Redis(t testing.TB, args ...string) *Server {
	t.Helper()
	dir, addr := t.TempDir(), FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	s := &Server{Addr: addr, Dir: dir, t: t, bin: lookPath(t, "redis-server"), ready: pingRedis,
		args: append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--enable-debug-command", "local"}, args...)}
	s.Start()
	return s
}

// MariaDB starts a mariadbd with an empty database called sluice that root reaches without a password; DSN names it.
func MariaDB(t testing.TB, args ...string) *Server {
	t.Helper()
	// The data directory's path also holds the socket, whose name may have 107 bytes at most: keep it short.
	dir, err := os.MkdirTemp("", "sl-db-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	addr := FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	data := filepath.Join(dir, "data")
	install := exec.Command(lookPath(t, "mariadb-install-db"), "--no-defaults", "--user="+user(), "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("mariadb-install-db: %v\n%s", err, out)
	}
	initSQL := filepath.Join(dir, "init.sql")
	if err := os.WriteFile(initSQL, []byte("CREATE DATABASE IF NOT EXISTS sluice CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: addr, Dir: dir, t: t, bin: lookPath(t, "mariadbd"), ready: dialOnce,
		args: append([]string{"--no-defaults", "--user=" + user(), "--datadir=" + data, "--port=" + port, "--bind-address=127.0.0.1",
			"--socket=" + filepath.Join(dir, "s"), "--pid-file=" + filepath.Join(dir, "pid"), "--init-file=" + initSQL,
			"--innodb-flush-log-at-trx-commit=1", "--skip-name-resolve"}, args...)}
	s.Start()
	return s
}

// DSN is the address of the sluice database of a MariaDB server, for github.com/go-sql-driver/mysql.
func (s *Server) DSN() string { return fmt.Sprintf("root@tcp(%s)/sluice", s.Addr) }

// Start runs the server again after Kill, on the same address and data. It returns when the server answers.
func (s *Server) Start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	logFile, err := os.OpenFile(filepath.Join(s.Dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = logFile.Close() }()
	cmd := exec.Command(s.bin, s.args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start %s: %v", s.bin, err)
	}
	if s.cmd == nil {
		s.t.Cleanup(s.Kill)
	}
	s.cmd = cmd
	deadline := time.Now().Add(startMax)
	for err = s.ready(s.Addr); err != nil; err = s.ready(s.Addr) {
		if time.Now().After(deadline) {
			out, _ := os.ReadFile(filepath.Join(s.Dir, "server.log"))
			s.t.Fatalf("%s does not answer on %s: %v\n%s", s.bin, s.Addr, err, out)
		}
		time.Sleep(20 * time.Millisecond) // the pause between two looks at a condition with a deadline
	}
}

// Kill ends the server at once (SIGKILL) and waits until it is gone. Calling it twice is harmless.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil || s.cmd.ProcessState != nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Signal sends a signal, for example SIGSTOP.
func (s *Server) Signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("signal %s: %v", s.bin, err)
	}
}

func pingRedis(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	var b [7]byte
	n, err := c.Read(b[:])
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(b[:n]), "+PONG") {
		return errors.New("not ready: " + string(b[:n]))
	}
	return nil
}

// dialOnce is good enough for mariadbd: it listens only once its init file has run.
func dialOnce(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// Ports of servers under test lie below the range from which the kernel takes the ports of outgoing connections
// (32768 and above on Linux): a port of that range, free when it was looked at, may be some connection's a moment later.
const (
	portMin = 10240
	portMax = 32000
)

// FreeAddr is a loopback address whose port nobody listens on, and which no other call of FreeAddr returns, in this
// process or another, until the test ends: a server that starts late, or is killed and started again, finds it free.
// The claim is a UDP socket on the same port, which is in no server's way.
func FreeAddr(t testing.TB) string {
	t.Helper()
	var err error
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(portMin+rand.IntN(portMax-portMin)))
		var claim net.PacketConn
		if claim, err = net.ListenPacket("udp", addr); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err != nil {
			_ = claim.Close()
			continue
		}
		_ = l.Close()
		t.Cleanup(func() { _ = claim.Close() })
		return addr
	}
	t.Fatalf("no free port between %d and %d: %v", portMin, portMax, err)
	return ""
}

func lookPath(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/usr/bin") {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && !st.IsDir() {
			return p
		}
	}
	t.Fatalf("%s is not installed; make test installs it", name)
	return ""
}

// user is whom mariadbd shall run as: it refuses root unless told so.
func user() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return os.Getenv("USER")
}
