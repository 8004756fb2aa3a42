package fault

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func doomed(p *Panics) {
	defer func() { p.Note("Data", recover()) }()
	panic("cold feet")
}

// TestNote shows that all are counted and that clients who can provoke a panic do not fill the log.
func TestNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := NewPanics(slog.New(slog.NewTextHandler(&out, nil)))
		for range 10 {
			doomed(p)
		}
		line := out.String()
		if p.Count() != 10 || strings.Count(line, "\n") != 1 {
			t.Errorf("%d counted, the log says %q", p.Count(), line)
		}
		for _, s := range []string{"call=Data", `panic="cold feet"`, "fault.doomed"} {
			if !strings.Contains(line, s) {
				t.Errorf("%q is not in %q", s, line)
			}
		}
		time.Sleep(logEvery) // the bubble's clock
		doomed(p)
		if !strings.Contains(out.String(), "panics=11") {
			t.Errorf("a second later the log says %q", out.String())
		}
	})
}
