package gateway

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain allows for netpoll's own pollers: they belong to the process and are never stopped.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cloudwego/netpoll.(*defaultPoll).Wait"))
}
