package delivery

import (
	"context"
	"time"
)

const (
	// saveEvery is how often the mark is written when it moved: at a restart, at most that much is delivered twice.
	saveEvery = 200 * time.Millisecond
	// saveTimeout bounds one write.
	saveTimeout = 2 * time.Second
	// recoverEvery is the shortest time between two calls of RedisLost: each scans the store.
	recoverEvery = 5 * time.Second
)

// runMarks writes the mark when it has moved.
func (d *Delivery) runMarks(ctx context.Context) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	var saved int64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		saved = d.saveMark(ctx, saved)
	}
}

// saveMark returns what is known to be saved.
func (d *Delivery) saveMark(ctx context.Context, saved int64) int64 {
	mark := d.marks.current()
	if mark == saved {
		return saved
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := d.deps.Marks.SaveMark(ctx, mark); err != nil {
		d.warnings.warn("delivery mark not saved", "mark", mark, "error", err)
		return saved
	}
	return mark
}

// lost asks for the rows above the mark. It never blocks.
func (d *Delivery) lost(cause string) {
	d.books.doubt.Store(true)
	d.log.Warn("messages above the delivery mark are needed again", "cause", cause)
	select {
	case d.recover <- struct{}{}:
	default:
	}
}

// runRecovery calls RedisLost, one call at a time and not too often.
func (d *Delivery) runRecovery(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-d.recover:
		case <-ctx.Done():
			return
		}
		if d.deps.RedisLost != nil {
			d.deps.RedisLost(ctx)
		}
		pause.Reset(recoverEvery)
	}
}
