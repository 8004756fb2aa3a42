package delivery

import (
	"context"
	"time"
)

const (
	// auditPage bounds one round trip of a count.
	auditPage = 512
	// auditEvery and auditMax are the pauses between two looks, growing while traffic keeps two looks from agreeing: a
	// look walks the whole resend table.
	auditEvery = time.Second
	auditMax   = time.Minute
)

// audit sets the books right after Redis lost data, or answers of it got lost. What the books say is pending, over all
// instances, is compared with what the resend table holds. A difference is believed when it stays the same from one look
// to a later one, and all instances have told since the first of them what they know.
type audit struct {
	// looked says that the rest is that of the first look.
	looked           bool
	pending, counted int64
	// at is the Redis time at the end of the first look, ms.
	at int64
}

// look says by how much the books are too high, once that is certain.
func (a *audit) look(pending, counted, now, since int64) (difference int64, certain bool) {
	if !a.looked || a.pending != pending || a.counted != counted {
		*a = audit{looked: true, pending: pending, counted: counted, at: now}
		return 0, false
	}
	return pending - counted, since > a.at
}

// runAudit looks while somebody doubts the books and this instance keeps them.
func (l *leases) runAudit(ctx context.Context) {
	var a audit
	pause := auditEvery
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if !l.inDoubt(time.Now()) {
			a, pause = audit{}, auditEvery
		} else if err := l.check(ctx, &a); err != nil {
			l.d.warnings.warn("books not audited", "error", err)
			a = audit{}
		}
		if pause = min(pause*5/4, auditMax); !a.looked {
			pause = auditEvery
		}
		timer.Reset(pause)
	}
}

// check makes one look.
func (l *leases) check(ctx context.Context, a *audit) error {
	counted, err := l.count(ctx)
	if err != nil {
		return err
	}
	// What the books say is read after the count: what happens in between makes this look differ from the next.
	r, err := l.call(ctx, opRenew, doubtKeep)
	if err != nil {
		return err
	}
	difference, certain := a.look(r.pending, counted, r.now, r.since)
	if !certain {
		return nil
	}
	*a = audit{}
	switch {
	case difference > 0:
		// Entries that are gone without a word, or whose end was not heard of.
		l.d.log.Warn("deliveries lost with redis", "pairs", difference)
		l.d.books.note(pairLost, int(difference))
	case difference < 0:
		// Entries whose enrolment was not heard of, or that an older copy of the data brought back.
		l.d.log.Warn("entries in the resend table that the books do not have", "pairs", -difference)
		l.d.books.note(pairEnrolled, int(-difference))
	}
	if _, err = l.call(ctx, opRenew, doubtClear); err != nil {
		return err
	}
	l.mu.Lock()
	l.doubt = false
	l.mu.Unlock()
	return nil
}

// count sums up the resend table, a page at a time.
func (l *leases) count(ctx context.Context) (pairs int64, err error) {
	for shard := range shards {
		for from := 0; ; from += auditPage {
			uids, err := l.d.table.page(ctx, shard, from, auditPage)
			if err != nil {
				return 0, err
			}
			if len(uids) == 0 {
				break
			}
			n, err := l.d.table.count(ctx, uids)
			if err != nil {
				return 0, err
			}
			pairs += n
		}
	}
	return pairs, nil
}
