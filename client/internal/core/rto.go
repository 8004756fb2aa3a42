package core

import "time"

// RTO is how long to wait for an answer, from measured round trips (RFC 6298, section 2). The zero value of the measured
// part means that nothing was measured yet.
type RTO struct {
	// Initial holds until the first sample; Min and Max bound the rest.
	Initial, Min, Max time.Duration

	srtt, rttvar time.Duration
	measured     bool
}

// Sample takes one round trip. Only a message that was sent exactly once may be measured (Karn's rule): the answer to a
// resent one could belong to either sending.
func (r *RTO) Sample(rtt time.Duration) {
	rtt = max(rtt, 0)
	if !r.measured {
		r.srtt, r.rttvar, r.measured = rtt, rtt/2, true
		return
	}
	r.rttvar = (3*r.rttvar + (r.srtt - rtt).Abs()) / 4
	r.srtt = (7*r.srtt + rtt) / 8
}

// Timeout is the wait before resend number resends+1: doubled for each earlier one, with up to a quarter of it on top by
// jitter in [0,1), so that clients whose server paused do not resend together.
func (r *RTO) Timeout(resends int, jitter float64) time.Duration {
	d := r.Initial
	if r.measured {
		d = max(r.srtt+4*r.rttvar, r.Min)
	}
	for range resends {
		if d *= 2; d >= r.Max {
			break
		}
	}
	d = min(d, r.Max)
	return d + time.Duration(float64(d)*jitter/4)
}
