package hooks

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/stateserver/store"
)

// lateMax bounds the receivers found offline at a resend that wait for the hook: a gateway's users who vanish at once.
// Beyond it they are dropped and counted; they are in memory alone, since the message was delivered once already.
const lateMax = 1 << 14

type leaver struct {
	uid   string
	msgID int64
}

// Late tells hooks.offline of receivers who were connected when a message came for them, never confirmed it, and were
// found gone at a resend: who lost his network is to be woken too.
type Late struct {
	teller *OfflineTeller
	load   func(ctx context.Context, msgIDs []int64) ([]store.Message, error)
	gone   chan leaver
}

// NewLate makes one; load finds messages by id.
func NewLate(teller *OfflineTeller, load func(ctx context.Context, msgIDs []int64) ([]store.Message, error)) *Late {
	return &Late{teller: teller, load: load, gone: make(chan leaver, lateMax)}
}

// Gone notes a receiver; it never blocks.
func (l *Late) Gone(uid string, msgID int64) {
	select {
	case l.gone <- leaver{uid, msgID}:
	default:
		l.teller.Metrics.dropped.Inc()
	}
}

// Run tells until ctx ends.
func (l *Late) Run(ctx context.Context) {
	for {
		var batch []leaver
		select {
		case <-ctx.Done():
			return
		case one := <-l.gone:
			batch = append(batch, one)
		}
		for len(batch) < batchMax && len(l.gone) > 0 {
			batch = append(batch, <-l.gone)
		}
		pauses := backoff.NewExponentialBackOff()
		pauses.InitialInterval, pauses.MaxInterval = retryFirst, retryMax
		for l.tell(ctx, batch) != nil {
			l.teller.Metrics.failures.WithLabelValues(Offline).Inc()
			select {
			case <-ctx.Done():
				return
			case <-time.After(pauses.NextBackOff()):
			}
		}
	}
}

func (l *Late) tell(ctx context.Context, batch []leaver) error {
	ids := make([]int64, len(batch))
	for i, g := range batch {
		ids[i] = g.msgID
	}
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rows, err := l.load(read, ids)
	if err != nil {
		return err
	}
	byID := make(map[int64]*statev1.StoredEvent, len(rows))
	for i := range rows {
		byID[rows[i].MsgID] = eventOf(&rows[i])
	}
	var events []*statev1.OfflineEvent
	for _, g := range batch {
		if m := byID[g.msgID]; m != nil && m.FromUid != g.uid {
			events = append(events, &statev1.OfflineEvent{Uid: g.uid, Message: m})
		}
	}
	return l.teller.tell(ctx, events)
}
