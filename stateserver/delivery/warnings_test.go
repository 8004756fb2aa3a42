package delivery

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestTrouble: a client that confirms nothing, or a Redis that is away, does not fill a disk with lines.
func TestTrouble(t *testing.T) {
	var out bytes.Buffer
	w := newWarnings(slog.New(slog.NewJSONHandler(&out, nil)))
	for range 1000 {
		w.warn("push failed", "addr", "a")
		w.warn("resend scan failed")
	}
	if lines := strings.Count(out.String(), "\n"); lines < 2 || lines > 100 {
		t.Errorf("%d lines of 2,000 warnings\n%s", lines, out.String())
	}
	now := time.Now()
	if _, ok := w.may("x", now); !ok {
		t.Error("the first is left out")
	}
	for range 3 {
		if _, ok := w.may("x", now.Add(warnEvery/2)); ok {
			t.Error("one more within the pause")
		}
	}
	if leftOut, ok := w.may("x", now.Add(warnEvery)); !ok || leftOut != 3 {
		t.Errorf("after the pause: %v, %d left out, want 3", ok, leftOut)
	}
	if leftOut, ok := w.may("x", now.Add(3*warnEvery)); !ok || leftOut != 0 {
		t.Errorf("later: %v, %d left out", ok, leftOut)
	}
}
