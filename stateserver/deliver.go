package stateserver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

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

// receivers are the users who get a message from uid to receiver, the sender among them for his other devices, and the
// roster that says so for a group. The reason is StoreUnavailable when it could not be found out; with NotMember the list
// is there all the same.
func (s *Server) receivers(ctx context.Context, uid, receiver string) (to []string, roster int64, why reason.Reason) {
	if !ident.ValidGroup(receiver) {
		if receiver == uid {
			return []string{uid}, 0, reason.None
		}
		return []string{receiver, uid}, 0, reason.None
	}
	l := s.groups.list(ctx, receiver)
	switch {
	case errors.Is(l.err, store.ErrNoSuchGroup):
		return nil, 0, reason.NoSuchGroup
	case l.err != nil:
		return nil, 0, reason.StoreUnavailable
	}
	if _, ok := slices.BinarySearch(l.members, uid); !ok {
		return l.members, l.roster, reason.NotMember
	}
	return l.members, l.roster, reason.None
}

// entitled are the users who may have a message that was stored before now: those members of a group who were in it then,
// and have not left since. The sender may have.
func (s *Server) entitled(ctx context.Context, m *store.Message) ([]string, error) {
	if !ident.ValidGroup(m.ReceiverID) {
		to, _, _ := s.receivers(ctx, m.FromUID, m.ReceiverID)
		return to, nil
	}
	return s.store.Entitled(ctx, m.ConvID, m.Seq, groupMembersMax)
}

const (
	// groupsFresh is how long a member list is believed. When another StateServer has changed it meanwhile, the transaction
	// that stores a message finds that, and the message comes again; only a stranger may be refused that long.
	groupsFresh = time.Second
	// groupsMax and cachedMembersMax bound the cache, groupMembersMax the size of a group.
	groupsMax        = 4096
	cachedMembersMax = 1 << 20
	groupMembersMax  = 100_000
	groupPage        = 10_000
	// groupWait bounds how long a message waits for a list. The look itself goes on, so that a large group on a slow
	// database is there for the next attempt; groupLook bounds it.
	groupWait = 100 * time.Millisecond
	groupLook = 5 * time.Second
)

type groupList struct {
	// members are sorted; the slice must not be changed.
	members []string
	roster  int64
	// err is an answer too: a database that does not answer is not asked once a message.
	err   error
	until time.Time
}

// groupCache spares the database one look a message of a busy group.
type groupCache struct {
	groups store.Groups
	// looks keeps one look a group under way; each ends by groupLook.
	looks singleflight.Group

	mu sync.Mutex
	// Guarded by mu.
	lists map[string]groupList
	held  int
}

func newGroupCache(g store.Groups) *groupCache {
	return &groupCache{groups: g, lists: make(map[string]groupList)}
}

func (c *groupCache) list(ctx context.Context, group string) groupList {
	now := time.Now()
	c.mu.Lock()
	l, ok := c.lists[group]
	c.mu.Unlock()
	if ok && now.Before(l.until) {
		return l
	}
	look := c.looks.DoChan(group, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupLook)
		defer cancel()
		l := c.read(ctx, group)
		c.keep(group, l)
		return l, nil
	})
	wait := time.NewTimer(groupWait)
	defer wait.Stop()
	select {
	case r := <-look:
		return r.Val.(groupList)
	case <-wait.C:
		l = groupList{err: errGroupWait}
		c.keep(group, l)
	case <-ctx.Done():
		l = groupList{err: ctx.Err()}
	}
	return l
}

// errGroupWait: the list is on its way.
var errGroupWait = errors.New("members are not known yet")

// keep remembers a list. The transaction checks its roster, so it may be as old as the look that brought it.
func (c *groupCache) keep(group string, l groupList) {
	l.until = time.Now().Add(groupsFresh)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lists) >= groupsMax || c.held > cachedMembersMax {
		clear(c.lists)
		c.held = 0
	}
	c.held += len(l.members) - len(c.lists[group].members)
	c.lists[group] = l
}

// read reads a list as it was at one moment: again, when it changed on the way.
func (c *groupCache) read(ctx context.Context, group string) groupList {
	before, err := c.groups.Roster(ctx, group)
	for err == nil {
		var l groupList
		if l.members, err = c.pages(ctx, group); err == nil {
			l.roster, err = c.groups.Roster(ctx, group)
		}
		if err == nil && l.roster == before {
			return l
		}
		before = l.roster
	}
	return groupList{err: err}
}

func (c *groupCache) pages(ctx context.Context, group string) ([]string, error) {
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
