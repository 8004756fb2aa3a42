package test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-im/sluice/gateway/echo"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/internal/testenv/certs"
	"github.com/sluice-im/sluice/test/cluster"
)

// conformanceMax bounds one run of the checker, which takes a second on a quiet machine.
const conformanceMax = 3 * time.Minute

// TestConformance points the independent checker of tools/wsconf at sluice dev --echo: nothing of RFC 6455 and RFC 7692 that
// it looks at may fail, or be merely tolerable.
func TestConformance(t *testing.T) {
	checker := buildChecker(t)
	pair := certs.New(t).Issue(t, "echo")
	for _, c := range []struct {
		name, scheme string
		args         []string
	}{
		{"oneshot", "ws", []string{"--echo-engine", "oneshot"}},
		{"oneshot TLS", "wss", []string{"--echo-engine", "oneshot", "--echo-cert", pair.Cert, "--echo-key", pair.Key}},
		{"netpoll", "ws", []string{"--echo-engine", "netpoll"}},
		{"netpoll TLS", "wss", []string{"--echo-engine", "netpoll", "--echo-cert", pair.Cert, "--echo-key", pair.Key}},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := testenv.FreeAddr(t)
			cluster.Start(t, "echo", cluster.Binary(t, "sluice"), nil, append([]string{"dev", "--echo", addr, "--echo-max", "1048576"}, c.args...)...)
			cluster.Eventually(t, time.Minute, "the endpoint listens", func() bool {
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					return false
				}
				return conn.Close() == nil
			})
			for _, args := range [][]string{{}, {"-flate"}} {
				args = append([]string{"-strict", "-wait", "30s", "-max", "1048576", "-frames", fmt.Sprint(echo.FragmentsMax)},
					append(args, c.scheme+"://"+addr+"/")...)
				out, err := check(t, checker, args)
				if err != nil {
					t.Errorf("wsconf %v: %v\n%s", args, err, out)
				}
				t.Logf("%s", out)
			}
		})
	}
}

func check(t *testing.T, checker string, args []string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), conformanceMax)
	defer cancel()
	return exec.CommandContext(ctx, checker, args...).CombinedOutput()
}

// buildChecker builds tools/wsconf, which is a module of its own.
func buildChecker(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "wsconf")
	cmd := exec.Command("go", "build", "-o", file, ".")
	cmd.Dir = filepath.Join("..", "tools", "wsconf")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the checker: %v\n%s", err, out)
	}
	return file
}
