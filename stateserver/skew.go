package stateserver

import (
	"time"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// skewWindow is how long a difference of clocks is believed after the last frame that showed it: a clock that is set
// while frames flow costs refusals (RETRY) for twice as long at most, and a pause of either side is still noticed.
const skewWindow = 10_000

// skew is how far a gateway's clock is off, as its frames tell: one with a budget left was received a moment before its
// batch was sent, so the smallest difference seen of late is that of the clocks. Without it, hosts whose clocks differ
// by more than frameAgeMax could not work together.
type skew struct {
	known bool
	// least is the smallest difference of the running window, before that of the one before it, since its start; all ms.
	least, before, since int64
}

// age is how long ago a frame was received; now is in ms since 1970.
func (k *skew) age(now int64, it *statev1.UplinkItem) time.Duration {
	if it.ReceivedAtMs == 0 {
		return 0
	}
	d := now - it.ReceivedAtMs
	if it.BudgetMs > 0 {
		switch {
		case !k.known:
			*k = skew{known: true, least: d, before: d, since: now}
		case now < k.since || now-k.since > skewWindow:
			k.before, k.least, k.since = k.least, d, now
		default:
			k.least = min(k.least, d)
		}
	}
	return time.Duration(d-min(k.least, k.before)) * time.Millisecond
}
