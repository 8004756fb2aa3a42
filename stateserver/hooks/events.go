package hooks

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// batchMax and batchBytesMax bound one call: stock gRPC servers take 4 MiB, and JSON makes a third more of bodies.
	batchMax      = 256
	batchBytesMax = 1 << 20
	// eventBytes is about what an event has beside content and body.
	eventBytes = 512
	// lookupMax bounds one look into the route table.
	lookupMax = 512
)

// eventOf is a message as hooks see it.
func eventOf(m *store.Message) *statev1.StoredEvent {
	return &statev1.StoredEvent{
		MsgId: strconv.FormatInt(m.MsgID, 10), ConvId: m.ConvID, Seq: m.Seq, FromUid: m.FromUID, ReceiverId: m.ReceiverID,
		Uuid: m.UUID, Type: m.Type, Content: m.Content, Body: m.Body, ServerAtMs: m.ServerAt,
	}
}

// batches cuts events into calls.
func batches[E any](events []E, bytes func(E) int) [][]E {
	var out [][]E
	from, size := 0, 0
	for i, e := range events {
		n := eventBytes + bytes(e)
		if i > from && (i-from == batchMax || size+n > batchBytesMax) {
			out = append(out, events[from:i])
			from, size = i, 0
		}
		size += n
	}
	if from < len(events) {
		out = append(out, events[from:])
	}
	return out
}

// call tells one batch after the other, each within timeout.
func call[E any](ctx context.Context, timeout time.Duration, cut [][]E, tell func(context.Context, []E) error) error {
	for _, b := range cut {
		if err := once(ctx, timeout, b, tell); err != nil {
			return err
		}
	}
	return nil
}

func once[E any](ctx context.Context, timeout time.Duration, batch []E, tell func(context.Context, []E) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return tell(ctx, batch)
}

// TellStored is Deps.Tell of hooks.stored.
func TellStored(to Target, timeout time.Duration, metrics *Metrics) func(context.Context, []store.Message) error {
	return func(ctx context.Context, page []store.Message) error {
		events := make([]*statev1.StoredEvent, len(page))
		for i := range page {
			events[i] = eventOf(&page[i])
		}
		cut := batches(events, func(e *statev1.StoredEvent) int { return len(e.Content) + len(e.Body) })
		err := call(ctx, timeout, cut, to.Stored)
		if err == nil {
			metrics.events.WithLabelValues(Stored).Add(float64(len(events)))
		}
		return err
	}
}

// OfflineTeller tells hooks.offline.
type OfflineTeller struct {
	To       Target
	Timeout  time.Duration
	Metrics  *Metrics
	Findings *Findings
	// Receivers are the users who get a message and of whom the hook wants to hear; none for a group that is too large.
	Receivers func(ctx context.Context, m *store.Message) ([]string, error)
	// Offline says who of uids has no connection. An error means that it is not known.
	Offline func(ctx context.Context, uids []string) ([]string, error)
}

// Tell is Deps.Tell of hooks.offline. Whom the delivery found offline is told; where that was forgotten, because this
// process or another one crashed or the hook was away for long, those are told who are offline now.
func (o *OfflineTeller) Tell(ctx context.Context, page []store.Message) error {
	found, err := o.found(ctx, page)
	if err != nil {
		return err
	}
	var events []*statev1.OfflineEvent
	for i := range page {
		if len(found[i]) == 0 {
			continue
		}
		e := eventOf(&page[i])
		for _, uid := range found[i] {
			events = append(events, &statev1.OfflineEvent{Uid: uid, Message: e})
		}
	}
	if err := o.tell(ctx, events); err != nil {
		return err
	}
	for i := range page {
		o.Findings.forget(page[i].MsgID)
	}
	return nil
}

func (o *OfflineTeller) tell(ctx context.Context, events []*statev1.OfflineEvent) error {
	cut := batches(events, func(e *statev1.OfflineEvent) int { return len(e.Message.Content) + len(e.Message.Body) })
	err := call(ctx, o.Timeout, cut, o.To.Offline)
	if err == nil {
		o.Metrics.events.WithLabelValues(Offline).Add(float64(len(events)))
	}
	return err
}

// found are the offline receivers of each message.
func (o *OfflineTeller) found(ctx context.Context, page []store.Message) ([][]string, error) {
	found := make([][]string, len(page))
	receivers := make([][]string, len(page))
	var ask []string
	for i := range page {
		var known bool
		if found[i], known = o.Findings.of(page[i].MsgID); known {
			continue
		}
		to, err := o.Receivers(ctx, &page[i])
		if err != nil {
			return nil, fmt.Errorf("receivers of message %d: %w", page[i].MsgID, err)
		}
		receivers[i] = slices.DeleteFunc(slices.Clone(to), func(uid string) bool { return uid == page[i].FromUID })
		ask = append(ask, receivers[i]...)
	}
	slices.Sort(ask)
	offline := make(map[string]bool)
	for some := range slices.Chunk(slices.Compact(ask), lookupMax) {
		uids, err := o.Offline(ctx, some)
		if err != nil {
			return nil, fmt.Errorf("who is offline: %w", err)
		}
		for _, uid := range uids {
			offline[uid] = true
		}
	}
	for i, to := range receivers {
		for _, uid := range to {
			if offline[uid] {
				found[i] = append(found[i], uid)
			}
		}
	}
	return found, nil
}
