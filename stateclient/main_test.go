package stateclient

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		serveForBenchmarks()
		return
	}
	goleak.VerifyTestMain(m)
}
