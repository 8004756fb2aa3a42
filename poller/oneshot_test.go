package poller_test

import (
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/conformance"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv(echoEnv); kind != "" {
		if err := serveEcho(kind); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(cfg poller.Config, h poller.Handler) (poller.Engine, error) {
		return poller.New(cfg, h, slog.New(slog.DiscardHandler))
	})
}
