package delivery

import "context"

// auditPage bounds one round trip of a count.
const auditPage = 512

// audit sets the books right after Redis lost data, or answers of it got lost. What the books say is pending, over all
// instances, is compared with what the resend table holds. Only a difference that two looks in a row show the same, with
// nothing moving in between, is believed.
type audit struct {
	// looked says that pending and counted are those of the last look.
	looked           bool
	pending, counted int64
}

func (a *audit) reset() { *a = audit{} }

// look says by how much the books are too high, once that is certain.
func (a *audit) look(pending, counted int64) (difference int64, certain bool) {
	certain = a.looked && a.pending == pending && a.counted == counted
	*a = audit{looked: true, pending: pending, counted: counted}
	return pending - counted, certain
}

// check makes one look, by the instance that holds the first shard.
func (l *leases) check(ctx context.Context) error {
	counted, err := l.count(ctx)
	if err != nil {
		l.audit.reset()
		return err
	}
	// What the books say is read after the count: an enrolment in between makes this look differ from the next.
	r, err := l.call(ctx, "renew", "-")
	if err != nil {
		l.audit.reset()
		return err
	}
	difference, certain := l.audit.look(r.pending, counted)
	if !certain {
		return nil
	}
	switch {
	case difference > 0:
		// Entries that are gone without a word, or whose end was not heard of.
		l.d.log.Warn("deliveries lost with redis", "pairs", difference)
		l.d.books.note(pairLost, int(difference))
	case difference < 0:
		// Entries whose enrolment was not heard of, or that an older copy of the data brought back.
		l.d.books.note(pairEnrolled, int(-difference))
	}
	l.audit.reset()
	_, err = l.call(ctx, "renew", "clear")
	return err
}

// count sums up the resend table.
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
