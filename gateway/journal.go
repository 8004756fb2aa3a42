package gateway

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// journalLines bounds the log lines that wait to be written. It is some seconds of the accept rate's worth; a log that
// is slower than that must not hold up a loop.
const journalLines = 8192

type line struct {
	level   slog.Level
	message string
	attrs   []slog.Attr
}

// journal writes log lines for those who must not block: loops, and the relay's answers.
type journal struct {
	log     *slog.Logger
	lines   chan line
	dropped atomic.Uint64
}

func newJournal(log *slog.Logger) *journal {
	return &journal{log: log, lines: make(chan line, journalLines)}
}

// write hands over one line; when too many wait it is dropped and counted.
func (j *journal) write(level slog.Level, message string, attrs []slog.Attr) {
	if !j.log.Enabled(context.Background(), level) {
		return
	}
	select {
	case j.lines <- line{level, message, attrs}:
	default:
		j.dropped.Add(1)
	}
}

// run writes until stop is closed, and then what is left.
func (j *journal) run(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case l := <-j.lines:
			j.put(ctx, l)
		case <-stop:
			for {
				select {
				case l := <-j.lines:
					j.put(ctx, l)
				default:
					return
				}
			}
		}
	}
}

func (j *journal) put(ctx context.Context, l line) {
	j.log.LogAttrs(ctx, l.level, l.message, l.attrs...)
}
