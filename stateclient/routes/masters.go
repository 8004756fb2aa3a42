package routes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// watchMasters compares the run_id of every master with the last one seen. A server whose INFO has no run_id is left out:
// there only the lease itself tells of a loss. A master that does not answer keeps its last run_id.
func (l *Lease) watchMasters(ctx context.Context) ([]Loss, error) {
	seen, err := runIDs(ctx, l.rdb)
	return l.compareMasters(seen, err), err
}

// compareMasters takes what was seen; err says that not all masters answered.
func (l *Lease) compareMasters(seen map[string]string, err error) []Loss {
	if len(seen) == 0 {
		l.unseen = l.unseen || err != nil
		return nil
	}
	known := make(map[string]bool, len(l.masters))
	for _, id := range l.masters {
		known[id] = true
	}
	first := l.masters == nil
	var losses []Loss
	if first && l.unseen {
		// It may be the master that holds the lease since then, or another one: routes were claimed meanwhile.
		losses = append(losses, RunIDChanged)
	}
	for addr, id := range seen {
		switch {
		case first || known[id]:
		case l.masters[addr] != "":
			losses = append(losses, RunIDChanged)
		default:
			losses = append(losses, MasterNew)
		}
	}
	if err != nil {
		for addr, id := range l.masters {
			if _, ok := seen[addr]; !ok {
				seen[addr] = id
			}
		}
	}
	l.masters = seen
	return losses
}

// runIDs asks each master for its run_id. What is returned beside an error are those that answered.
func runIDs(ctx context.Context, rdb redis.UniversalClient) (map[string]string, error) {
	ids := make(map[string]string)
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		id, err := runID(ctx, rdb)
		if id != "" {
			// One place, whatever address a Sentinel gives it today.
			ids["master"] = id
		}
		return ids, err
	}
	var mu sync.Mutex
	var failed []error
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		id, err := runID(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = append(failed, err)
		} else if id != "" {
			ids[node.Options().Addr] = id
		}
		return nil
	})
	return ids, errors.Join(append(failed, err)...)
}

func runID(ctx context.Context, rdb redis.Cmdable) (string, error) {
	info, err := rdb.Info(ctx, "server").Result()
	var refused redis.Error
	if errors.As(err, &refused) {
		return "", nil // no such section, or not allowed: this server does not tell
	}
	if err != nil {
		return "", fmt.Errorf("info: %w", err)
	}
	for line := range strings.Lines(info) {
		if id, ok := strings.CutPrefix(line, "run_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", nil
}
