// Package test runs the real programs as processes and holds what every client saw against the promises.
package test

import (
	"os"
	"testing"

	"github.com/sluice-im/sluice/test/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	cluster.RemoveBinaries()
	os.Exit(code)
}
