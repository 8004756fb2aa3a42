package stateserver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/stateserver/commit"
	"github.com/sluice-im/sluice/stateserver/store"
)

// handover is the delivery as the committers see it.
type handover struct{ s *Server }

// Begin implements commit.Delivery.
func (h handover) Begin(ids []int64) { h.s.delivery.Begin(ids) }

// Abandon implements commit.Delivery.
func (h handover) Abandon(ids []int64) { h.s.delivery.Abandon(ids) }

// Deliver implements commit.Delivery. What the delivery does not take stays above the mark, which brings it back.
func (h handover) Deliver(ctx context.Context, stored []commit.Item) {
	tasks := make([]Task, len(stored))
	for i, it := range stored {
		u := it.(*uplink)
		tasks[i] = Task{Message: u.msg, Receivers: u.to, SenderDevice: u.device}
	}
	if err := h.s.delivery.Enqueue(ctx, tasks); err != nil {
		h.s.log.Warn("stored messages were not enqueued for delivery; they are above the mark", "messages", len(tasks), "err", err)
	}
}

// receivers are the users who get a message from uid to receiver, the sender among them for his other devices. The reason
// is StoreUnavailable when it could not be found out.
func (s *Server) receivers(ctx context.Context, uid, receiver string) ([]string, reason.Reason) {
	if !ident.ValidGroup(receiver) {
		if receiver == uid {
			return []string{uid}, reason.None
		}
		return []string{receiver, uid}, reason.None
	}
	members, err := s.groups.members(ctx, receiver)
	switch {
	case errors.Is(err, store.ErrNoSuchGroup):
		return nil, reason.NoSuchGroup
	case err != nil:
		return nil, reason.StoreUnavailable
	}
	if _, ok := slices.BinarySearch(members, uid); !ok {
		return nil, reason.NotMember
	}
	return members, reason.None
}

const (
	// groupsFresh is how long a member list is believed: another StateServer may have changed it.
	groupsFresh = time.Second
	// groupsMax and cachedMembersMax bound the cache, groupMembersMax the size of a group.
	groupsMax        = 4096
	cachedMembersMax = 1 << 20
	groupMembersMax  = 100_000
	groupPage        = 10_000
	// groupWait bounds one look.
	groupWait = 100 * time.Millisecond
)

type groupList struct {
	members []string
	// err is an answer too: a database that does not answer is not asked once a message.
	err   error
	until time.Time
}

// groupCache spares the database one look a message of a busy group.
type groupCache struct {
	groups store.Groups

	mu sync.Mutex
	// Guarded by mu.
	lists map[string]groupList
	held  int
}

func newGroupCache(g store.Groups) *groupCache {
	return &groupCache{groups: g, lists: make(map[string]groupList)}
}

// members are sorted; the slice must not be changed.
func (c *groupCache) members(ctx context.Context, group string) ([]string, error) {
	now := time.Now()
	c.mu.Lock()
	l, ok := c.lists[group]
	c.mu.Unlock()
	if ok && now.Before(l.until) {
		return l.members, l.err
	}
	members, err := c.read(ctx, group)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lists) >= groupsMax || c.held > cachedMembersMax {
		clear(c.lists)
		c.held = 0
	}
	c.held += len(members) - len(c.lists[group].members)
	c.lists[group] = groupList{members, err, now.Add(groupsFresh)}
	return members, err
}

func (c *groupCache) read(ctx context.Context, group string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, groupWait)
	defer cancel()
	var members []string
	for after := ""; len(members) < groupMembersMax; after = members[len(members)-1] {
		page, err := c.groups.Members(ctx, group, after, groupPage)
		if err != nil {
			return nil, err
		}
		members = append(members, page...)
		if len(page) < groupPage {
			break
		}
	}
	slices.Sort(members)
	return members, nil
}

// forget drops a list that was changed here.
func (c *groupCache) forget(group string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held -= len(c.lists[group].members)
	delete(c.lists, group)
}
