package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-im/sluice/gateway/echo"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/test/cluster"
)

// conformanceMax bounds one run of the checker, which takes a second on a quiet machine.
const conformanceMax = 3 * time.Minute

// TestConformance points the independent checker of tools/wsconf at sluice dev --echo: nothing of RFC 6455 and RFC 7692 that
// it looks at may fail, or be merely tolerable.
func TestConformance(t *testing.T) {
	checker := buildChecker(t)
	cert, key := certificate(t)
	for _, c := range []struct {
		name, scheme string
		args         []string
	}{
		{"oneshot", "ws", []string{"--echo-engine", "oneshot"}},
		{"oneshot TLS", "wss", []string{"--echo-engine", "oneshot", "--echo-cert", cert, "--echo-key", key}},
		{"netpoll", "ws", []string{"--echo-engine", "netpoll"}},
		{"netpoll TLS", "wss", []string{"--echo-engine", "netpoll", "--echo-cert", cert, "--echo-key", key}},
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

// certificate writes a self-signed certificate and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
