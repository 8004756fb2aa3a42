package stateclient

import (
	"os"
	"testing"

	"github.com/sluice-im/sluice/internal/testenv/leaks"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		serveForBenchmarks()
		return
	}
	leaks.Main(m)
}
