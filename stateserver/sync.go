package stateserver

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// replyBytesMax bounds SYNC_REPLY and PULL_REPLY (design: protocol 1, "Receiver").
	replyBytesMax = 48 << 10
	// syncPageMax is about as many conversations as a reply holds.
	syncPageMax = 512
	// pullLimitMax bounds the messages of one PULL; pullLimit is what 0 means.
	pullLimitMax = 500
	pullLimit    = 100
	// syncOverlap is how much further back than asked SYNC looks: a message's time is given before its transaction ends, on
	// the clock of whichever StateServer stores it. It covers both; what is told twice is harmless.
	syncOverlap = 30 * time.Second
	// queryWorkers and queriesMax bound what reads at once and what waits for it.
	queryWorkers = 8
	queriesMax   = 4096
	// queryWait bounds one query.
	queryWait = time.Second
)

// queries runs what must not hold up a stream: one runs SYNC and PULL, another the user's own commands, so that neither
// waits for the other.
type queries struct {
	jobs chan func(ctx context.Context)
}

func newQueries() *queries { return &queries{jobs: make(chan func(context.Context), queriesMax)} }

func (q *queries) run(ctx context.Context) {
	var workers sync.WaitGroup
	for range queryWorkers {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case job := <-q.jobs:
					one, cancel := context.WithTimeout(ctx, queryWait)
					job(one)
					cancel()
				}
			}
		})
	}
	workers.Wait()
}

// query runs do for u in q, when everything before it on its connection is answered.
func (s *Server) query(q *queries, u *uplink, first starter, t clientv1.CommandType, data []byte,
	do func(context.Context, *uplink, clientv1.CommandType, []byte) answer) {
	first.whenFirst(u, func() {
		select {
		case q.jobs <- func(ctx context.Context) { u.answer(do(ctx, u, t, data)) }:
		default:
			u.reply(errorTo(t, conversationOf(t, data), reason.Overloaded, ""))
		}
	})
}

// conversationOf is the conversation that a query is about, for an ERROR that must name it.
func conversationOf(t clientv1.CommandType, data []byte) string {
	var m clientv1.Pull
	if t != clientv1.CommandType_PULL || m.UnmarshalVT(data) != nil || len(m.ConvId) > convBytesMax {
		return ""
	}
	return m.ConvId
}

// sync answers SYNC.
func (s *Server) sync(ctx context.Context, u *uplink, t clientv1.CommandType, data []byte) answer {
	var m clientv1.Sync
	if err := m.UnmarshalVT(data); err != nil {
		return answer{payload: errorTo(t, "", reason.BadMessage, "not a Sync")}
	}
	// The time is that of the first page, before anything is read: what changes while the client pages is told again.
	at, after, ok := parseCursor(m.Cursor, time.Now().UnixMilli())
	if !ok {
		return answer{payload: errorTo(t, "", reason.BadMessage, "not a cursor of this server")}
	}
	since := max(0, m.SinceMs-syncOverlap.Milliseconds())
	convs, err := s.store.Conversations(ctx, store.SyncQuery{UID: u.uid, Since: since, After: after, Limit: syncPageMax + 1})
	if err != nil {
		return answer{payload: s.readFailed(t, "", err)}
	}
	reply := &clientv1.SyncReply{ServerTimeMs: at}
	size := 64 + convBytesMax
	for _, c := range convs {
		state := &clientv1.ConversationState{ConvId: c.ConvID, MaxSeq: c.MaxSeq, FloorSeq: c.FloorSeq, ReadSeq: c.ReadSeq,
			Unread: c.Unread, PeerDelivered: c.PeerDelivered, PeerRead: c.PeerRead}
		n := state.SizeVT() + 4
		if len(reply.Conversations) == syncPageMax || (size+n > replyBytesMax && len(reply.Conversations) > 0) {
			reply.HasMore = true
			reply.Cursor = strconv.FormatInt(at, 10) + "/" + reply.Conversations[len(reply.Conversations)-1].ConvId
			break
		}
		size += n
		reply.Conversations = append(reply.Conversations, state)
	}
	return answer{payload: command(clientv1.CommandType_SYNC_REPLY, reply)}
}

// parseCursor splits a cursor into the time of the first page and the last conversation told.
func parseCursor(cursor string, now int64) (at int64, after string, ok bool) {
	if cursor == "" {
		return now, "", true
	}
	first, after, ok := strings.Cut(cursor, "/")
	at, err := strconv.ParseInt(first, 10, 64)
	if !ok || err != nil || at < 0 || at > now || len(after) > convBytesMax {
		return 0, "", false
	}
	return at, after, true
}

// pull answers PULL.
func (s *Server) pull(ctx context.Context, u *uplink, t clientv1.CommandType, data []byte) answer {
	var m clientv1.Pull
	if err := m.UnmarshalVT(data); err != nil || len(m.ConvId) > convBytesMax {
		return answer{payload: errorTo(t, "", reason.BadMessage, "not a Pull")}
	}
	reply := &clientv1.PullReply{ConvId: m.ConvId}
	member, err := s.store.Member(ctx, u.uid, m.ConvId)
	switch {
	case errors.Is(err, store.ErrNotMember):
		if a, b, ok := ident.Users(m.ConvId); ok && (a == u.uid || b == u.uid) {
			// Nobody has written yet.
			return answer{payload: command(clientv1.CommandType_PULL_REPLY, reply)}
		}
		return answer{payload: errorTo(t, m.ConvId, reason.NotMember, "")}
	case err != nil:
		return answer{payload: s.readFailed(t, m.ConvId, err)}
	}
	reply.FloorSeq = member.FloorSeq
	limit := int(min(m.Limit, pullLimitMax))
	if limit == 0 {
		limit = pullLimit
	}
	size := 64 + len(m.ConvId)
	err = s.store.Scan(ctx, m.ConvId, max(m.AfterSeq, member.FloorSeq), limit+1, func(msg *store.Message) bool {
		d := down(msg)
		n := d.SizeVT() + 4
		if len(reply.Messages) == limit || (size+n > replyBytesMax && len(reply.Messages) > 0) {
			reply.HasMore = true
			return false
		}
		size += n
		reply.Messages = append(reply.Messages, d)
		return true
	})
	if err != nil {
		return answer{payload: s.readFailed(t, m.ConvId, err)}
	}
	return answer{payload: command(clientv1.CommandType_PULL_REPLY, reply)}
}

func (s *Server) readFailed(t clientv1.CommandType, conv string, err error) []byte {
	s.metrics.storeErrors.WithLabelValues("read").Inc()
	// Clients ask as often as they like: one line a second says it.
	s.queryFailed.Do(func() { s.log.Warn("query failed", "command", t.String(), "err", err) })
	return errorTo(t, conv, reason.StoreUnavailable, "")
}
