// Package model is a logic tier in memory that keeps the promises of the real one: dense numbers, one message per uuid,
// cumulative acknowledgements, resends, SYNC and PULL in pages. Tests put bad networks between it and the client.
package model

import (
	"fmt"
	"slices"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
)

// Message is what a command's data is marshalled from.
type Message interface {
	SizeVT() int
	MarshalToSizedBufferVT(dAtA []byte) (int, error)
	UnmarshalVT(dAtA []byte) error
}

// Command is one command to a user: to one connection if Answer is set, else to all his devices but From.
type Command struct {
	UID     string
	Type    clientv1.CommandType
	Message Message
}

// Server is the logic tier. It is not safe for concurrent use.
type Server struct {
	// Page bounds the entries of a SYNC_REPLY and PULL_REPLY; 0 = no bound.
	Page int
	// NowMs is the server's clock.
	NowMs int64

	convs  map[string]*conversation
	order  []*conversation
	byUUID map[string]*clientv1.MessageAck
}

type conversation struct {
	id        string
	messages  []*clientv1.MessageDown
	members   []string
	delivered map[string]int64
	read      map[string]int64
	changedMs int64
}

// New makes an empty one.
func New() *Server {
	return &Server{NowMs: 1_000_000, convs: map[string]*conversation{}, byUUID: map[string]*clientv1.MessageAck{}}
}

// Messages is what is stored in a conversation.
func (s *Server) Messages(conv string) []*clientv1.MessageDown {
	if c := s.convs[conv]; c != nil {
		return c.messages
	}
	return nil
}

// Handle carries out one command of a user: the answer to his connection (nil = none), and what others are told.
func (s *Server) Handle(uid string, t clientv1.CommandType, data []byte) (answer *Command, others []Command) {
	s.NowMs++
	switch t {
	case clientv1.CommandType_MESSAGEUP:
		up := decode(data, &clientv1.MessageUp{})
		ack, pushes := s.submit(uid, up)
		return &Command{UID: uid, Type: clientv1.CommandType_MESSAGEACK, Message: ack}, pushes
	case clientv1.CommandType_DELIVERED:
		d := decode(data, &clientv1.Delivered{})
		return nil, s.receipt(uid, d.ConvId, d.Seq, clientv1.CommandType_DELIVERED_NOTICE)
	case clientv1.CommandType_READ:
		r := decode(data, &clientv1.Read{})
		return nil, s.receipt(uid, r.ConvId, r.Seq, clientv1.CommandType_READ_NOTICE)
	case clientv1.CommandType_SYNC:
		return &Command{UID: uid, Type: clientv1.CommandType_SYNC_REPLY, Message: s.sync(uid, decode(data, &clientv1.Sync{}))}, nil
	case clientv1.CommandType_PULL:
		return &Command{UID: uid, Type: clientv1.CommandType_PULL_REPLY, Message: s.pull(decode(data, &clientv1.Pull{}))}, nil
	case clientv1.CommandType_HEARTBEAT:
		return &Command{UID: uid, Type: clientv1.CommandType_HEARTBEAT}, nil
	default:
		return nil, nil
	}
}

// decode panics on what the client must never send.
func decode[M Message](data []byte, msg M) M {
	if err := msg.UnmarshalVT(data); err != nil {
		panic(fmt.Sprintf("model: the client sent a malformed %T: %v", msg, err))
	}
	return msg
}

func (s *Server) submit(uid string, up *clientv1.MessageUp) (*clientv1.MessageAck, []Command) {
	key := uid + " " + up.Uuid
	if ack := s.byUUID[key]; ack != nil {
		return ack, nil
	}
	c := s.conversation(uid, up.ReceiverId)
	c.changedMs = s.NowMs
	d := &clientv1.MessageDown{
		MsgId: fmt.Sprint(s.NowMs), ConvId: c.id, Seq: int64(len(c.messages)) + 1, Type: up.Type, FromUid: uid,
		Content: up.Content, Body: up.Body, ServerAtMs: s.NowMs, Uuid: up.Uuid,
	}
	c.messages = append(c.messages, d)
	ack := &clientv1.MessageAck{Uuid: up.Uuid, MsgId: d.MsgId, ConvId: c.id, Seq: d.Seq, ServerAtMs: s.NowMs}
	s.byUUID[key] = ack
	var pushes []Command
	for _, m := range c.members {
		if m != uid {
			pushes = append(pushes, Command{UID: m, Type: clientv1.CommandType_MESSAGEDOWN, Message: d})
		}
	}
	return ack, pushes
}

func (s *Server) conversation(from, to string) *conversation {
	id := ident.Conversation(from, to)
	c := s.convs[id]
	if c == nil {
		c = &conversation{id: id, members: []string{from, to}, delivered: map[string]int64{}, read: map[string]int64{}}
		s.convs[id] = c
		s.order = append(s.order, c)
	}
	return c
}

func (s *Server) receipt(uid, conv string, seq int64, t clientv1.CommandType) []Command {
	c := s.convs[conv]
	if c == nil || seq > int64(len(c.messages)) {
		panic(fmt.Sprintf("model: %s confirms %s up to %d, which does not exist", uid, conv, seq))
	}
	marks := c.delivered
	if t == clientv1.CommandType_READ_NOTICE {
		marks = c.read
		c.delivered[uid] = max(c.delivered[uid], seq)
	}
	if seq <= marks[uid] {
		return nil
	}
	marks[uid], c.changedMs = seq, s.NowMs
	var notices []Command
	for _, m := range c.members {
		if m == uid {
			continue
		}
		var notice Message = &clientv1.DeliveredNotice{ConvId: conv, Uid: uid, Seq: seq}
		if t == clientv1.CommandType_READ_NOTICE {
			notice = &clientv1.ReadNotice{ConvId: conv, Uid: uid, Seq: seq}
		}
		notices = append(notices, Command{UID: m, Type: t, Message: notice})
	}
	return notices
}

// Unconfirmed is what the resend table holds for a user: others' messages that he has not confirmed.
func (s *Server) Unconfirmed(uid string) []Command {
	var resends []Command
	for _, c := range s.order {
		if !slices.Contains(c.members, uid) {
			continue
		}
		for _, d := range c.messages[c.delivered[uid]:] {
			if d.FromUid != uid {
				resends = append(resends, Command{UID: uid, Type: clientv1.CommandType_MESSAGEDOWN, Message: d})
			}
		}
	}
	return resends
}

func (s *Server) sync(uid string, q *clientv1.Sync) *clientv1.SyncReply {
	r := &clientv1.SyncReply{ServerTimeMs: s.NowMs}
	start := 0
	if q.Cursor != "" {
		if _, err := fmt.Sscan(q.Cursor, &start); err != nil {
			panic(fmt.Sprintf("model: cursor %q: %v", q.Cursor, err))
		}
	}
	for i := start; i < len(s.order); i++ {
		c := s.order[i]
		if !slices.Contains(c.members, uid) || c.changedMs < q.SinceMs {
			continue
		}
		if s.Page > 0 && len(r.Conversations) == s.Page {
			r.Cursor, r.HasMore = fmt.Sprint(i), true
			break
		}
		state := &clientv1.ConversationState{ConvId: c.id, MaxSeq: int64(len(c.messages)), ReadSeq: c.read[uid]}
		for _, m := range c.members {
			if m != uid {
				state.PeerDelivered, state.PeerRead = c.delivered[m], c.read[m]
			}
		}
		r.Conversations = append(r.Conversations, state)
	}
	return r
}

func (s *Server) pull(q *clientv1.Pull) *clientv1.PullReply {
	r := &clientv1.PullReply{ConvId: q.ConvId}
	c := s.convs[q.ConvId]
	if c == nil || q.AfterSeq >= int64(len(c.messages)) {
		return r
	}
	limit := int(q.Limit)
	if s.Page > 0 {
		limit = min(limit, s.Page)
	}
	rest := c.messages[q.AfterSeq:]
	r.Messages = rest[:min(limit, len(rest))]
	r.HasMore = len(rest) > len(r.Messages)
	return r
}
