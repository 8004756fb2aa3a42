package commit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-im/sluice/stateserver/store"
)

// Pauses between two looks at an unknown outcome.
const (
	resolvePauseMin = 10 * time.Millisecond
	resolvePauseMax = time.Second
)

// resolve finds out what a transaction whose COMMIT failed has left. Until that is known, the next transaction of these
// conversations must not start: it could overtake. Those who wait are answered RETRY by their own deadline meanwhile.
func (k *committer) resolve(ctx context.Context, b *store.Batch) ([]store.Result, error) {
	keys := make([]store.Key, len(b.Messages))
	for i := range b.Messages {
		keys[i] = store.Key{FromUID: b.Messages[i].FromUID, UUID: b.Messages[i].UUID}
	}
	for pause := resolvePauseMin; ; pause = min(2*pause, resolvePauseMax) {
		found, err := k.all.deps.Store.Resolve(ctx, keys)
		if err == nil {
			return k.resolved(b, keys, found)
		}
		k.all.deps.Log.Warn("outcome of a commit is still unknown", "messages", len(keys), "err", err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", store.ErrUnknown, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// errNotCommitted: the transaction turned out not to have happened.
var errNotCommitted = errors.New("the transaction was not committed")

func (k *committer) resolved(b *store.Batch, keys []store.Key, found map[store.Key]store.Result) ([]store.Result, error) {
	mine := make(map[int64]bool, len(k.ids))
	for _, id := range k.ids {
		mine[id] = true
	}
	results := make([]store.Result, len(keys))
	first := make(map[store.Key]bool, len(keys))
	committed, missing := false, false
	for i, key := range keys {
		r, ok := found[key]
		if !ok {
			// If the transaction is there, this one was refused by it: its group is not there, or was another one by then.
			missing = true
			results[i] = store.Result{Outcome: store.NoGroup, ConvID: b.Messages[i].ConvID}
			if b.Messages[i].Roster != 0 {
				results[i].Outcome = store.Moved
			}
			continue
		}
		results[i] = asCopy(r, &b.Messages[i])
		if mine[r.MsgID] {
			committed = true
			if !first[key] {
				first[key] = true
				results[i].Outcome = store.Stored
			}
		}
	}
	if missing && !committed {
		return nil, errNotCommitted
	}
	return results, nil
}
