package delivery

import (
	"context"
	"time"
)

const (
	// ackersCount is how many batches of acks may be on their way: one sends while the other gathers.
	ackersCount = 2
	// ackBatchMax bounds one round trip.
	ackBatchMax = 512
)

// ackCall is one caller of Acked.
type ackCall struct {
	ack  ack
	done chan settled
}

// Acked takes a client's cumulative ack: device of uid holds everything of conv up to seq. advanced says that some entry
// was waiting for it. Calls that come together share a round trip. After an error the outcome is unknown; the next ack,
// or the one that answers a resend, covers it.
func (d *Delivery) Acked(ctx context.Context, uid, device, conv string, seq int64) (advanced bool, err error) {
	d.books.clientAcks.Inc()
	c := &ackCall{ack: ack{uid, device, conv, seq}, done: make(chan settled, 1)}
	if err := d.acks.put(ctx, c, 0); err != nil {
		return false, err
	}
	select {
	case s := <-c.done:
		return len(s.receivedAt) > 0, s.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (d *Delivery) runAcker(work context.Context) {
	var batch []*ackCall
	var acks []ack
	for work.Err() == nil {
		var open bool
		batch, open = d.acks.poll(batch[:0], ackBatchMax, anyCost)
		if len(batch) == 0 {
			if !open {
				return
			}
			select {
			case <-d.acks.ready:
			case <-work.Done():
			}
			continue
		}
		acks = acks[:0]
		for _, c := range batch {
			acks = append(acks, c.ack)
		}
		now, noted := time.Now(), d.books.await()
		for i, s := range d.table.ack(work, acks) {
			if s.err != nil {
				d.books.doubt.Store(true)
			}
			d.books.acked(s.receivedAt, now)
			batch[i].done <- s
		}
		noted()
		clear(batch)
	}
}

// failPendingAcks answers those who came too late to be served.
func (d *Delivery) failPendingAcks() {
	for {
		batch, _ := d.acks.poll(nil, ackBatchMax, anyCost)
		if len(batch) == 0 {
			return
		}
		for _, c := range batch {
			c.done <- settled{err: ErrStopped}
		}
	}
}
