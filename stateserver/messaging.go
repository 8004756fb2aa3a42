package stateserver

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/stateserver/store"
)

// membersChangeMax bounds the members that one call may name: a transaction stays short.
const membersChangeMax = 10_000

// messaging is the StateServer's own API.
type messaging struct {
	statev1.UnimplementedMessagingServer
	s *Server
}

var _ statev1.MessagingServer = messaging{}

// Submit implements statev1.MessagingServer: a message of a bot or a system takes the way of a client's.
func (m messaging) Submit(ctx context.Context, in *statev1.SubmitRequest) (*statev1.SubmitResponse, error) {
	up := &clientv1.MessageUp{Uuid: in.Uuid, Type: in.Type, Content: in.Content, ReceiverId: in.ReceiverId, Body: in.Body}
	if !ident.ValidUID(in.FromUid) {
		return nil, status.Errorf(codes.InvalidArgument, "from_uid %q is not of the alphabet", in.FromUid)
	}
	c := make(call, 1)
	u := &uplink{s: m.s, sink: c, uid: in.FromUid, receivedAt: time.Now().UnixMilli()}
	u.deadline, _ = ctx.Deadline()
	data, err := up.MarshalVT()
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if m.s.parse(u, data) {
		m.s.messages(ctx, []*uplink{u}, time.Now())
	}
	select {
	case a := <-c:
		return submitResponse(a)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// submitResponse translates the answer that a client would have got.
func submitResponse(a answer) (*statev1.SubmitResponse, error) {
	var cmd clientv1.Command
	if err := cmd.UnmarshalVT(a.payload); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if cmd.Type == clientv1.CommandType_ERROR {
		var e clientv1.Error
		if err := e.UnmarshalVT(cmd.Data); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return nil, status.Error(codes.InvalidArgument, e.Reason)
	}
	var ack clientv1.MessageAck
	if err := ack.UnmarshalVT(cmd.Data); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	switch ack.Status {
	case clientv1.MessageAckStatus_ACK_OK:
		return &statev1.SubmitResponse{MsgId: ack.MsgId, ConvId: ack.ConvId, Seq: ack.Seq, ServerAtMs: ack.ServerAtMs, Duplicate: a.repeated}, nil
	case clientv1.MessageAckStatus_ACK_RETRY:
		return nil, status.Error(codes.Unavailable, ack.Reason)
	}
	return nil, status.Error(failCode(ack.Reason), ack.Reason)
}

func failCode(why string) codes.Code {
	switch why {
	case reason.UUIDReused.String():
		return codes.AlreadyExists
	case reason.NoSuchGroup.String():
		return codes.NotFound
	case reason.NotMember.String():
		return codes.PermissionDenied
	}
	return codes.InvalidArgument
}

// CreateGroup implements statev1.MessagingServer.
func (m messaging) CreateGroup(ctx context.Context, in *statev1.CreateGroupRequest) (*statev1.CreateGroupResponse, error) {
	id := in.GroupId
	if id == "" {
		id = "g:" + strings.ToLower(rand.Text())
	}
	if err := checkGroup(id, in.Members); err != nil {
		return nil, err
	}
	err := m.s.store.CreateGroup(ctx, id, in.Members, time.Now().UnixMilli())
	m.s.groups.forget(id)
	if errors.Is(err, store.ErrGroupExists) {
		return nil, status.Errorf(codes.AlreadyExists, "group %s", id)
	}
	if err != nil {
		return nil, fromStore(err)
	}
	return &statev1.CreateGroupResponse{GroupId: id}, nil
}

func checkGroup(id string, members []string) error {
	if !ident.ValidGroup(id) {
		return status.Errorf(codes.InvalidArgument, "group_id %q is not g: and characters of the alphabet", id)
	}
	if len(members) > membersChangeMax {
		return status.Errorf(codes.InvalidArgument, "%d members, allowed are %d a call", len(members), membersChangeMax)
	}
	if i := slices.IndexFunc(members, func(uid string) bool { return !ident.ValidUID(uid) }); i >= 0 {
		return status.Errorf(codes.InvalidArgument, "member %q is not of the alphabet", members[i])
	}
	return nil
}

// change runs a change of members.
func (m messaging) change(group string, members []string, do func(at int64) (int, error)) (uint32, error) {
	if err := checkGroup(group, members); err != nil {
		return 0, err
	}
	n, err := do(time.Now().UnixMilli())
	m.s.groups.forget(group)
	if errors.Is(err, store.ErrNoSuchGroup) {
		return 0, status.Errorf(codes.NotFound, "group %s", group)
	}
	return uint32(n), fromStore(err)
}

// AddMembers implements statev1.MessagingServer. New members see what is stored from now on.
func (m messaging) AddMembers(ctx context.Context, in *statev1.AddMembersRequest) (*statev1.AddMembersResponse, error) {
	n, err := m.change(in.GroupId, in.Members, func(at int64) (int, error) {
		return m.s.store.AddMembers(ctx, in.GroupId, in.Members, at)
	})
	if err != nil {
		return nil, err
	}
	return &statev1.AddMembersResponse{Added: n}, nil
}

// RemoveMembers implements statev1.MessagingServer.
func (m messaging) RemoveMembers(ctx context.Context, in *statev1.RemoveMembersRequest) (*statev1.RemoveMembersResponse, error) {
	n, err := m.change(in.GroupId, in.Members, func(at int64) (int, error) {
		return m.s.store.RemoveMembers(ctx, in.GroupId, in.Members, at)
	})
	if err != nil {
		return nil, err
	}
	return &statev1.RemoveMembersResponse{Removed: n}, nil
}

// ListMembers implements statev1.MessagingServer.
func (m messaging) ListMembers(ctx context.Context, in *statev1.ListMembersRequest) (*statev1.ListMembersResponse, error) {
	if err := checkGroup(in.GroupId, nil); err != nil {
		return nil, err
	}
	limit := int(in.Limit)
	if limit == 0 || limit > membersChangeMax {
		limit = membersChangeMax
	}
	members, err := m.s.store.Members(ctx, in.GroupId, in.Cursor, limit)
	if errors.Is(err, store.ErrNoSuchGroup) {
		return nil, status.Errorf(codes.NotFound, "group %s", in.GroupId)
	}
	if err != nil {
		return nil, fromStore(err)
	}
	out := &statev1.ListMembersResponse{Members: members}
	if len(members) == limit {
		out.Cursor = members[len(members)-1]
	}
	return out, nil
}
