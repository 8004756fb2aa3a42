package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/test/cluster"
)

// TestImpossibleConfiguration: exit 2 with key, value and what is allowed, and nothing was started: no file of the store.
func TestImpossibleConfiguration(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, []byte("no key at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(t.TempDir(), "never.db")
	for _, c := range []struct {
		program string
		sets    []string
		wants   []string
	}{
		{"gateway", []string{"limits.frame.bytes=65536.5"}, []string{"limits.frame.bytes", "65536.5", "int"}},
		{"gateway", []string{`listeners=[{name: a, protocol: tcp, addr: "127.0.0.1:99999"}]`}, []string{"listeners[0].addr", "99999", "65535"}},
		{"gateway", []string{"gateway.advertise=:9090"}, []string{"gateway.advertise", ":9090", "host:port"}},
		{"gateway", []string{`routes.redis.addrs=["a:1", "b:2"]`}, []string{"routes.redis.addrs", "a:1", "standalone"}},
		{"gateway", []string{"auth.jwt.public_key_file=" + key, "auth.jwt.secret="}, []string{"auth.jwt.public_key_file", key, "PEM"}},
		{"stateserver", []string{"resend.max=-1"}, []string{"resend.max", "-1", "0 to 10"}},
		{"stateserver", []string{"resend.backoff=[]"}, []string{"resend.backoff", "at least one"}},
		{"stateserver", []string{"resend.per_uid_max=100000"}, []string{"resend.per_uid_max", "100000", "1 to 1000"}},
	} {
		name := c.program + "/" + c.sets[0]
		t.Run(strings.ReplaceAll(name, key, "key.pem"), func(t *testing.T) {
			var args []string
			for _, s := range append([]string{"auth.jwt.secret=" + cluster.Secret, "admin.addr=" + testenv.FreeAddr(t)}, c.sets...) {
				if c.program == "gateway" || !strings.HasPrefix(s, "auth.") {
					args = append(args, "--set", s)
				}
			}
			if c.program == "stateserver" {
				args = append(args, "--set", "store.dsn=sqlite://"+db)
			}
			for _, check := range [][]string{nil, {"--check"}} {
				p := cluster.Start(t, c.program, cluster.Binary(t, c.program), nil, append(args, check...)...)
				if code := p.ExitCode(time.Minute); code != 2 {
					t.Fatalf("%v: exit %d\n%s", check, code, p.Log())
				}
				for _, w := range c.wants {
					if !strings.Contains(p.Log(), w) {
						t.Errorf("%v: %q does not name %q", check, p.Log(), w)
					}
				}
			}
		})
	}
	if found, _ := filepath.Glob(db + "*"); found != nil {
		t.Errorf("a bad configuration has made %v", found)
	}
}

// TestPortTaken: exit 1 with the port.
func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := fmt.Sprint(taken.Addr().(*net.TCPAddr).Port)
	for program, sets := range map[string][]string{
		"gateway": {"auth.jwt.secret=" + cluster.Secret, "internal.addr=" + testenv.FreeAddr(t), "admin.addr=" + testenv.FreeAddr(t),
			"listeners=[{name: tcp, protocol: tcp, addr: " + strconv.Quote(taken.Addr().String()) + "}]"},
		"stateserver": {"grpc.addr=" + taken.Addr().String(), "admin.addr=" + testenv.FreeAddr(t),
			"store.dsn=sqlite://" + filepath.Join(t.TempDir(), "messages.db")},
	} {
		var args []string
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		p := cluster.Start(t, program, cluster.Binary(t, program), nil, args...)
		if code := p.ExitCode(time.Minute); code != 1 || !strings.Contains(p.Log(), port) {
			t.Errorf("%s: exit %d, want 1 and port %s named\n%s", program, code, port, p.Log())
		}
	}
}
