package core

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRTO(t *testing.T) {
	r := RTO{Initial: 5 * time.Second, Min: 2 * time.Second, Max: 40 * time.Second}
	for i, want := range []time.Duration{5, 10, 20, 40, 40} {
		if got := r.Timeout(i, 0); got != want*time.Second {
			t.Errorf("before a sample, resend %d: %v", i, got)
		}
	}
	if got := r.Timeout(0, 0.999999); got < 6*time.Second || got > 6250*time.Millisecond {
		t.Errorf("with full jitter: %v", got)
	}
	r.Sample(time.Second)
	// SRTT 1 s, RTTVAR 0.5 s.
	if got := r.Timeout(0, 0); got != 3*time.Second {
		t.Errorf("after one sample: %v", got)
	}
	for range 100 {
		r.Sample(10 * time.Millisecond)
	}
	if got := r.Timeout(0, 0); got != 2*time.Second {
		t.Errorf("on a fast network: %v", got)
	}
	r.Sample(30 * time.Second)
	if got := r.Timeout(0, 0); got < 30*time.Second || got > 40*time.Second {
		t.Errorf("after an outlier: %v", got)
	}
}

// TestRTOBounds: whatever is measured, the timeout stays within its bounds, and is never shorter for a later resend.
func TestRTOBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := RTO{Initial: 5 * time.Second, Min: 2 * time.Second, Max: 40 * time.Second}
		for _, ms := range rapid.SliceOf(rapid.Int64Range(-10, 100_000)).Draw(t, "samples") {
			r.Sample(time.Duration(ms) * time.Millisecond)
		}
		jitter := rapid.Float64Range(0, 0.999).Draw(t, "jitter")
		last := time.Duration(0)
		for resend := range 12 {
			d := r.Timeout(resend, jitter)
			if d < r.Min || d > r.Max*5/4 || d < last {
				t.Fatalf("resend %d: %v after %v", resend, d, last)
			}
			last = d
		}
	})
}
