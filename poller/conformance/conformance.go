// Package conformance is the suite that every engine of package poller passes: what a Handler may rely on, shown with
// real sockets. Run it under -race too.
package conformance

import (
	"testing"

	"github.com/sluice-im/sluice/poller"
)

// NewEngine makes the engine under test.
type NewEngine func(cfg poller.Config, h poller.Handler) (poller.Engine, error)

// Run runs the suite for an engine with the given traits; most have none.
func Run(t *testing.T, newEngine func(poller.Config, poller.Handler) (poller.Engine, error), traits ...Trait) {
	for _, c := range suite() {
		for _, tr := range traits {
			if other, ok := instead(tr, c.name); ok {
				c.test = other
			}
		}
		if c.test == nil {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.test(t, newEngine) })
	}
}

type entry struct {
	name string
	test func(*testing.T, NewEngine)
}

// suite is what every engine must pass, the quick and general first.
func suite() []entry {
	return []entry{
		{"Echo", testEcho},
		{"SerialHandling", testSerial},
		{"LeftoverGrows", testLeftover},
		{"InputOverflow", testInputOverflow},
		{"ParkWake", testParkWake},
		{"WakeForeign", testWakeForeign},
		{"AimedWakes", testAimedWakes},
		{"HangupParked", testHangupParked},
		{"HalfCloseParked", testHalfCloseParked},
		{"ResetAfterHalfClose", testResetAfterHalfClose},
		{"HalfCloseAnswers", testHalfCloseAnswers},
		{"ParkAtEOF", testParkAtEOF},
		{"HalfCloseHeld", testHalfCloseHeld},
		{"LastWords", testLastWords},
		{"Linger", testLinger},
		{"LingerEnds", testLingerEnds},
		{"CloseOutside", testCloseOutside},
		{"CloseFull", testCloseFull},
		{"ResetOutside", testResetOutside},
		{"PeerReset", testPeerReset},
		{"FirstCause", testFirstCause},
		{"Shutdown", testShutdown},
		{"Reuse", testReuse},
		{"OutboxBound", testOutboxBound},
		{"OverflowInLease", testOverflowInLease},
		{"LargeReplies", testLargeReplies},
		{"WriteStall", testWriteStall},
		{"ParkOutbox", testParkOutbox},
		{"HeldInput", testHeldInput},
		{"ParkedInput", testParkedInput},
		{"Pushers", testPushers},
		{"ConnectionLimit", testConnectionLimit},
		{"AcceptRate", testAcceptRate},
		{"AddressConnections", testAddressConnections},
		{"AddressRate", testAddressRate},
		{"AddressFirst", testAddressFirst},
		{"Listeners", testListeners},
		{"Accepted", testAccepted},
		{"Proxy", testProxy},
		{"ProxyRefused", testProxyRefused},
		{"StagedEnd", testStagedEnd},
		{"StagedPark", testStagedPark},
		{"StagedLarge", testStagedLarge},
		{"TLSEcho", testTLSEcho},
		{"TLSHidden", testTLSHidden},
		{"TLSHeld", testTLSHeld},
		{"TLSFirst", testTLSFirst},
		{"TLSAccepted", testTLSAccepted},
		{"TLSParkAtEOF", testTLSParkAtEOF},
		{"TLSClose", testTLSClose},
		{"TLSPushers", testTLSPushers},
		{"TLSBad", testTLSBad},
		{"TLSBadBehindGood", testTLSBadBehindGood},
		{"TLSChurn", testTLSChurn},
		{"TLSShutdown", testTLSShutdown},
		{"Exhaustion", testExhaustion},
		{"Churn", testChurn},
		{"Timer", testTimer},
		{"TimerPeriod", testTimerPeriod},
		{"TimerUnparks", testTimerUnparks},
		{"PassEnd", testPassEnd},
		{"Panics", testPanics},
	}
}
