package gateway

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-im/sluice/internal/testenv/leaks"
)

// TestMain allows for netpoll's own pollers: they belong to the process and are never stopped.
func TestMain(m *testing.M) {
	leaks.Main(m, goleak.IgnoreAnyFunction("github.com/cloudwego/netpoll.(*defaultPoll).Wait"))
}
