// Package node holds the lease of this process's node id and draws message ids with it. An id is drawn only while the
// lease certainly stands, and only up to a time that the database has on record, so that ids of a node only grow: over
// restarts, clock steps, and processes that were paused (design: guarantees 2).
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-im/sluice/stateserver/snowflake"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// Life is how long a lease stands after its last renewal: a dead process's messages are delivered by another after it.
	Life = 6 * time.Second
	// renewEvery leaves room for three failures.
	renewEvery = time.Second
	// margin is how much earlier than the database this process takes its lease for over: it covers the way there.
	margin = time.Second
	// reserve is how far ahead of the clock ids may be: as long as the lease stands without a renewal.
	reserve = Life
	// retryEvery is the pause between two attempts to get a lease.
	retryEvery = 500 * time.Millisecond
)

// ErrNoLease means that no id can be drawn now, since the lease is not certain to stand.
var ErrNoLease = errors.New("no node lease")

// Node is safe for concurrent use.
type Node struct {
	nodes store.Nodes
	log   *slog.Logger
	owner string

	mu sync.Mutex
	// Guarded by mu. validUntil is on the monotonic clock; saved is the mark as far as it is on record.
	lease      store.NodeLease
	gen        *snowflake.Generator
	validUntil time.Time
	saved      int64
}

// Acquire leases a node.
func Acquire(ctx context.Context, nodes store.Nodes, log *slog.Logger) (*Node, error) {
	n := &Node{nodes: nodes, log: log, owner: rand.Text()}
	if err := n.acquire(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

// acquire takes a node, for the first time or after the last one was lost. New ids start above all that were drawn here:
// the delivery mark is one line over both.
func (n *Node) acquire(ctx context.Context) error {
	begin := time.Now()
	l, err := n.nodes.LeaseNode(ctx, n.owner, Life)
	if err != nil {
		return err
	}
	n.mu.Lock()
	after := max(l.IDsUntil, begin.UnixMilli()-1)
	if n.gen != nil {
		after = max(after, n.gen.Last())
	}
	n.mu.Unlock()
	until := after + reserve.Milliseconds()
	if err := n.nodes.RenewNode(ctx, l, Life, until); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lease, n.gen, n.validUntil, n.saved = l, snowflake.New(l.Node, after, until), begin.Add(Life-margin), l.Mark
	n.log.Info("node leased", "node", l.Node, "mark", l.Mark)
	return nil
}

// Run renews the lease until ctx ends, and gets another node when this one is lost.
func (n *Node) Run(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := n.renew(ctx)
		for errors.Is(err, store.ErrLeaseLost) && ctx.Err() == nil {
			n.log.Error("node lease was lost, another process has taken the node over", "node", n.Lease().Node)
			n.invalidate()
			if err = n.acquire(ctx); err != nil {
				n.log.Warn("no node lease", "err", err)
				err = store.ErrLeaseLost
				select {
				case <-ctx.Done():
				case <-time.After(retryEvery):
				}
			}
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("node lease not renewed", "err", err)
		}
	}
}

func (n *Node) invalidate() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.validUntil = time.Time{}
}

func (n *Node) renew(ctx context.Context) error {
	n.mu.Lock()
	l, gen := n.lease, n.gen
	n.mu.Unlock()
	begin := time.Now()
	until := max(begin.UnixMilli(), gen.Last()) + reserve.Milliseconds()
	ctx, cancel := context.WithTimeout(ctx, Life)
	defer cancel()
	if err := n.nodes.RenewNode(ctx, l, Life, until); err != nil {
		return err
	}
	gen.Allow(until)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.validUntil = begin.Add(Life - margin)
	return nil
}

// NextID is the next message id and its time in ms since 1970, which is the message's server_at.
func (n *Node) NextID() (id, at int64, err error) {
	n.mu.Lock()
	gen, valid := n.gen, n.validUntil
	n.mu.Unlock()
	now := time.Now()
	if !now.Before(valid) {
		return 0, 0, ErrNoLease
	}
	if id, err = gen.Next(now.UnixMilli()); err != nil {
		return 0, 0, err
	}
	return id, snowflake.Time(id), nil
}

// Lease is the node that ids are drawn of.
func (n *Node) Lease() store.NodeLease {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lease
}

// Owner names this process in leases.
func (n *Node) Owner() string { return n.owner }

// Valid says whether ids can be drawn now.
func (n *Node) Valid() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Now().Before(n.validUntil)
}

// Mark is the delivery mark that is on record for the node.
func (n *Node) Mark() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.saved
}

// SaveMark records the delivery mark.
func (n *Node) SaveMark(ctx context.Context, msgID int64) error {
	l := n.Lease()
	if err := n.nodes.SaveMark(ctx, l, msgID); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lease.Node == l.Node {
		n.saved = max(n.saved, msgID)
	}
	return nil
}

// Release ends the lease, so that nobody has to wait for its end. Call it when no id will be drawn any more.
func (n *Node) Release(ctx context.Context) error {
	n.mu.Lock()
	l, last := n.lease, n.gen.Last()
	n.validUntil = time.Time{}
	n.mu.Unlock()
	if err := n.nodes.ReleaseNode(ctx, l, last); err != nil {
		return fmt.Errorf("release node: %w", err)
	}
	return nil
}
