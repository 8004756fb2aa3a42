package delivery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	leaseKey = "unack:lease"
	// leaseTTL is how long the shards of a StateServer that died stay unscanned: short against the first resend (11 s).
	leaseTTL = 3 * time.Second
	// leaseEvery leaves two more tries before a lease runs out.
	leaseEvery = time.Second
	// leaseRetry comes after a try that failed: nothing is delivered before the first answer.
	leaseRetry = 200 * time.Millisecond
	// keeperShard is the one whose holder keeps the books of all.
	keeperShard = 0
	// foldAfter is how long the line of an instance in the books outlives it: longer than any process is paused.
	foldAfter = time.Hour
	// doubtEvery lets the audit look even when nothing is known to be wrong: a client that repeats a command by itself
	// hides a lost answer.
	doubtEvery = 10 * time.Minute
)

// leases are the shards that this instance scans. It also notices when Redis lost its data.
type leases struct {
	d        *Delivery
	instance string
	// known is closed at the first answer: from then on a loss of data is noticed.
	known chan struct{}

	// Of the goroutine that runs it.
	epoch     string
	runs      map[string]string
	lastDoubt time.Time

	// heard is the Redis time of the last answer.
	heard atomic.Int64

	mu sync.Mutex
	// Guarded by mu.
	shards []int
	until  time.Time
	doubt  bool
}

func newLeases(d *Delivery) *leases {
	return &leases{d: d, instance: d.cfg.Instance, known: make(chan struct{})}
}

// owned are the shards held at now. The time counts from before the renewal was sent, so that it ends here before it
// ends in Redis.
func (l *leases) owned(now time.Time) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.After(l.until) {
		return nil
	}
	return l.shards
}

func (l *leases) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		pause.Reset(leaseEvery)
		if err := l.renew(ctx); err != nil && ctx.Err() == nil {
			l.d.warnings.warn("resend leases not renewed", "error", err)
			l.d.books.doubt.Store(true)
			pause.Reset(leaseRetry)
		}
	}
}

// What a call of the lease script asks for; the words are those of scripts/lease.lua.
const (
	opRenew    = "renew"
	opLeave    = "leave"
	doubtKeep  = "-"
	doubtSay   = "say"
	doubtClear = "clear"
)

// leaseReply is what Redis said to one renewal.
type leaseReply struct {
	epoch   string
	doubt   bool
	pending int64
	// now is Redis time, since the time from which on every instance that is there has told all it knows; ms.
	now, since int64
	shards     []int
}

func (l *leases) call(ctx context.Context, op, doubt string) (leaseReply, error) {
	ctx, cancel := context.WithTimeout(ctx, l.d.cfg.RedisTimeout)
	defer cancel()
	pending, since := l.line()
	args := []any{l.instance, leaseTTL.Milliseconds(), shards, op, pending, doubt, randomName(), foldAfter.Milliseconds(), since}
	v, err := run(ctx, l.d.deps.Redis, []call{{l.d.table.scripts.lease, []string{leaseKey}, args}})[0].Slice()
	if err != nil {
		return leaseReply{}, fmt.Errorf("renew leases: %w", err)
	}
	r := leaseReply{epoch: text(v[0]), doubt: number(v[1]) == 1, pending: number(v[2]), now: number(v[3]), since: number(v[4])}
	for _, s := range v[5:] {
		r.shards = append(r.shards, int(number(s)))
	}
	l.heard.Store(r.now)
	return r, nil
}

// line is what this instance says in the books. since is a time of Redis before which nothing happened that pending does
// not know: that of an answer that came before pending was read; or 0 while answers are awaited.
func (l *leases) line() (pending, since int64) {
	since = l.heard.Load()
	if l.d.books.awaited.Load() > 0 {
		since = 0
	}
	return l.d.books.pending.Load(), since
}

func (l *leases) renew(ctx context.Context) error {
	sent := time.Now()
	doubt := doubtKeep
	// Taken before the call: a doubt that arises meanwhile is said the next time.
	said := l.d.books.doubt.Swap(false)
	if said || sent.Sub(l.lastDoubt) > doubtEvery {
		doubt = doubtSay
	}
	r, err := l.call(ctx, opRenew, doubt)
	if err != nil {
		if said {
			l.d.books.doubt.Store(true)
		}
		return err
	}
	if doubt == doubtSay {
		l.lastDoubt = sent
	}
	l.mu.Lock()
	l.shards, l.until, l.doubt = r.shards, sent.Add(leaseTTL), r.doubt
	l.mu.Unlock()
	if slices.Contains(r.shards, keeperShard) {
		l.d.books.unacked.Store(max(r.pending, 0))
	} else {
		l.d.books.unacked.Store(0)
	}
	l.watch(ctx, r)
	return nil
}

// inDoubt says that this instance keeps the books and somebody doubts them.
func (l *leases) inDoubt(now time.Time) bool {
	l.mu.Lock()
	doubt := l.doubt
	l.mu.Unlock()
	return doubt && slices.Contains(l.owned(now), keeperShard)
}

// watch notices that Redis lost data (its epoch is another), was restarted or failed over (its run_id is another), or
// answers again after messages had to be given up.
func (l *leases) watch(ctx context.Context, r leaseReply) {
	known := l.epoch
	l.epoch = r.epoch
	if known == "" {
		close(l.known)
	}
	runs, err := runIDs(ctx, l.d.deps.Redis, l.d.cfg.RedisTimeout)
	switch {
	case known != "" && known != r.epoch:
		l.d.lost("redis lost its data")
	case err == nil && changed(l.runs, runs):
		l.d.lost("redis was restarted or failed over")
	case l.d.stalled.Swap(false):
		l.d.lost("messages were not enrolled while redis was away")
	}
	if err == nil {
		l.runs = runs
	}
}

// changed says that a server is another run than before, or was not there before.
func changed(before, now map[string]string) bool {
	if len(before) == 0 {
		return false
	}
	for addr, id := range now {
		if before[addr] != id {
			return true
		}
	}
	return false
}

// runIDs are the run_ids of all masters by address; of a single server, under "".
func runIDs(ctx context.Context, rdb redis.UniversalClient, timeout time.Duration) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		info, err := rdb.Info(ctx, "server").Result()
		if err != nil {
			return nil, fmt.Errorf("ask for run_id: %w", err)
		}
		return map[string]string{"": runID(info)}, nil
	}
	var mu sync.Mutex
	ids := make(map[string]string)
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		ids[c.Options().Addr] = runID(info)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask for run_ids: %w", err)
	}
	return ids, nil
}

func runID(info string) string {
	for line := range strings.Lines(info) {
		if id, ok := strings.CutPrefix(line, "run_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// leave gives the shards back at once, so that another StateServer goes on with them.
func (l *leases) leave(ctx context.Context) {
	doubt := doubtKeep
	if l.d.books.doubt.Load() {
		doubt = doubtSay
	}
	if _, err := l.call(ctx, opLeave, doubt); err != nil {
		l.d.log.Warn("resend leases not given back", "error", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shards = nil
}
