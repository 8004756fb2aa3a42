package gateway

import "testing"

// TestTrimWaitsForCalm: a wave is followed by one collection, steady churn by none.
func TestTrimWaitsForCalm(t *testing.T) {
	var tr trim
	for i, step := range []struct {
		open int64
		due  bool
	}{{0, false}, {500, false}, {500, false}, {5000, false}, {9000, false}, {9010, true}, {9010, false}, {9100, false},
		{9100, false}, {12000, false}, {12000, true}, {12000, false}, {3000, false}, {3000, true}, {0, false}, {0, true}, {0, false}} {
		if got := tr.due(step.open); got != step.due {
			t.Errorf("step %d, %d open: %v", i, step.open, got)
		}
	}
}
