// Package logicts tests the TypeScript example as the Go one is tested.
package logicts

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/sluice-im/sluice/examples/internal/stage"
	"github.com/sluice-im/sluice/test/cluster"
)

const (
	// npmMax bounds an installation from the registry on a slow line.
	npmMax = 4 * time.Minute
	// installs is how often it is tried.
	installs = 3
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinaries()
	os.Exit(code)
}

func TestUsers(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("%v: make deps installs it", err)
	}
	install(t)
	if out, err := npm(t, "run", "build"); err != nil {
		t.Fatalf("npm run build: %v\n%s", err, out)
	}
	stage.LogicTier(t, func(listen, gateway string) *cluster.Process {
		return cluster.Start(t, "logic-ts", node, []string{stage.InternalTokenEnv}, "dist/main.js", "--listen", listen, "--gateway", gateway)
	})
}

// install gets the example's dependencies. It is the only test that needs a registry, whose every answer nobody can rely on.
func install(t *testing.T) {
	t.Helper()
	var out []byte
	var err error
	for range installs {
		if out, err = npm(t, "ci", "--prefer-offline"); err == nil {
			return
		}
		t.Logf("npm ci: %v\n%s", err, out)
	}
	t.Fatalf("npm ci failed %d times", installs)
}

func npm(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), npmMax)
	defer cancel()
	return exec.CommandContext(ctx, "npm", args...).CombinedOutput()
}
