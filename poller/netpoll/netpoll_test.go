package netpoll_test

import (
	"log/slog"
	"os"
	"testing"

	cloudwego "github.com/cloudwego/netpoll"
	"go.uber.org/goleak"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/conformance"
	"github.com/sluice-im/sluice/poller/netpoll"
)

func newEngine(cfg poller.Config, h poller.Handler) (poller.Engine, error) {
	return netpoll.New(cfg, h, slog.New(slog.DiscardHandler))
}

func TestMain(m *testing.M) {
	if spec := os.Getenv(serverEnv); spec != "" {
		if err := serve(spec); err != nil {
			panic(err)
		}
		return
	}
	// netpoll's pollers and their descriptors belong to the process and are never stopped; they are started here so that
	// no test finds them as its own.
	e, err := newEngine(poller.Config{}, nil)
	if err != nil {
		panic(err)
	}
	e.Shutdown()
	cloudwego.Initialize()
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cloudwego/netpoll.(*defaultPoll).Wait"))
}

func TestConformance(t *testing.T) {
	conformance.Run(t, newEngine, conformance.ReadsOn)
}
