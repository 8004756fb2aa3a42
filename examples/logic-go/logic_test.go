package main

import (
	"os"
	"testing"

	"github.com/sluice-im/sluice/examples/internal/stage"
	"github.com/sluice-im/sluice/test/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinaries()
	os.Exit(code)
}

func TestUsers(t *testing.T) {
	bin := stage.Build(t)
	stage.LogicTier(t, func(listen, gateway string) *cluster.Process {
		return cluster.Start(t, "logic-go", bin, []string{stage.InternalTokenEnv}, "-listen", listen, "-gateway", gateway)
	})
}
