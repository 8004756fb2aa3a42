// Package examples holds docs/drop-in.md, which is written for these examples, against the tree.
package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-im/sluice/test/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinaries()
	os.Exit(code)
}

func document(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/drop-in.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// blocks gives the texts of the fenced blocks of one language.
func blocks(text, language string) (all []string) {
	for {
		_, rest, ok := strings.Cut(text, "```"+language+"\n")
		if !ok {
			return all
		}
		block, after, _ := strings.Cut(rest, "```")
		all, text = append(all, block), after
	}
}

// The configuration is one that the gateway takes, and every key of the tables is one that it knows.
func TestConfiguration(t *testing.T) {
	text := document(t)
	yaml := blocks(text, "yaml")
	if len(yaml) != 1 {
		t.Fatalf("%d blocks of configuration", len(yaml))
	}
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(yaml[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--check", "--config", file}
	for key, value := range map[string]string{
		"relay.mode": "stream", "relay.unary_method": "/a.B/C", "relay.targets": "dns:///logic:9300", "relay.timeout": "500ms",
		"relay.calls": "2048", "relay.token": "t", "auth.jwt.uid_claim": "uid", "gateway.advertise": "127.0.0.1:9090",
		"heartbeat.idle_timeout": "75s", "internal.addr": "127.0.0.1:9090",
	} {
		if !strings.Contains(text, key) {
			t.Errorf("%s is not in the document", key)
		}
		args = append(args, "--set", key+"="+value)
	}
	if out, err := exec.CommandContext(t.Context(), cluster.Binary(t, "gateway"), args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

var (
	link    = regexp.MustCompile(`\]\((\.\./[^)#]+)\)`)
	program = regexp.MustCompile(`go run (\./[^\s)]+)`)
)

// What the document points at, and the programs that it starts, are there.
func TestPlaces(t *testing.T) {
	text := document(t)
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("../docs", m[1])); err != nil {
			t.Error(err)
		}
	}
	for _, b := range blocks(text, "sh") {
		for _, m := range program.FindAllStringSubmatch(b, -1) {
			_, product := os.Stat(filepath.Join("..", m[1], "main.go"))
			if _, err := os.Stat(filepath.Join(m[1], "main.go")); err != nil && product != nil {
				t.Errorf("no program at %s", m[1])
			}
		}
	}
}
