package delivery

import (
	"log/slog"
	"sync"
	"time"
)

// warnEvery is the least pause between two lines that say the same: an outage fails thousands of batches a second, and
// so does one client that confirms nothing. The metrics have the numbers.
const warnEvery = time.Second

// warnings writes few lines of much trouble. The texts are constants of this package, so the map is bounded.
type warnings struct {
	log *slog.Logger

	mu sync.Mutex
	// Guarded by mu.
	said map[string]*said
}

type said struct {
	at      time.Time
	leftOut int
}

func newWarnings(log *slog.Logger) *warnings {
	return &warnings{log: log, said: make(map[string]*said)}
}

// warn writes a line unless the same text was written less than warnEvery ago; the next line says how many were left out.
func (w *warnings) warn(what string, args ...any) {
	leftOut, ok := w.may(what, time.Now())
	if !ok {
		return
	}
	if leftOut > 0 {
		args = append(args, "left_out", leftOut)
	}
	w.log.Warn(what, args...)
}

func (w *warnings) may(what string, now time.Time) (leftOut int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.said[what]
	if s == nil {
		s = &said{}
		w.said[what] = s
	}
	if !s.at.IsZero() && now.Sub(s.at) < warnEvery {
		s.leftOut++
		return 0, false
	}
	leftOut = s.leftOut
	s.at, s.leftOut = now, 0
	return leftOut, true
}
