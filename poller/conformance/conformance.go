// Package conformance is the suite that every engine of package poller passes: what a Handler may rely on, shown with
// real sockets. Run it under -race too.
package conformance

import (
	"testing"

	"github.com/sluice-im/sluice/poller"
)

// NewEngine makes the engine under test.
type NewEngine func(cfg poller.Config, h poller.Handler) (poller.Engine, error)

// Run runs the suite.
func Run(t *testing.T, newEngine func(poller.Config, poller.Handler) (poller.Engine, error)) {
	for _, c := range []struct {
		name string
		test func(*testing.T, NewEngine)
	}{
		{"Echo", testEcho},
		{"SerialHandling", testSerial},
		{"LeftoverGrows", testLeftover},
		{"InputOverflow", testInputOverflow},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newEngine) })
	}
}
