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

// npmMax bounds an installation from the registry on a slow line.
const npmMax = 5 * time.Minute

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
	npm(t, "ci", "--prefer-offline")
	npm(t, "run", "build")
	stage.LogicTier(t, func(listen, gateway string) *cluster.Process {
		return cluster.Start(t, "logic-ts", node, []string{stage.InternalTokenEnv}, "dist/main.js", "--listen", listen, "--gateway", gateway)
	})
}

func npm(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), npmMax)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "npm", args...).CombinedOutput(); err != nil {
		t.Fatalf("npm %v: %v\n%s", args, err, out)
	}
}
