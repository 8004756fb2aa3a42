package store

import (
	"context"
	"errors"
	"io"
	"time"
)

// Errors of this package. They are wrapped with the operation and object.
var (
	// ErrUnknown: COMMIT did not answer "done". The rows may be there; Resolve tells.
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrLeaseLost: the node id belongs to somebody else now; nothing was stored.
	ErrLeaseLost = errors.New("node lease lost")
	// ErrInUse: another process owns the SQLite file.
	ErrInUse = errors.New("in use by another process")
	// ErrInvalid: a message with ids that are not of their alphabets; a bug of the caller.
	ErrInvalid = errors.New("invalid ids")
	// ErrNotMember: the user has no part in the conversation.
	ErrNotMember = errors.New("not a member")
	// ErrNoSuchGroup: the group was never created.
	ErrNoSuchGroup = errors.New("no such group")
	// ErrGroupExists: a group of that id is there already.
	ErrGroupExists = errors.New("group exists")
)

// Key is what the unique key arbitrates: one message per sender and uuid.
type Key struct{ FromUID, UUID string }

// Outcome is what became of one message of a batch.
type Outcome uint8

const (
	// Stored: inserted by this call; it took a number.
	Stored Outcome = iota + 1
	// Duplicate: the same message had been stored before; the result is the first one.
	Duplicate
	// Reused: another payload had been stored under the same uuid; nothing was inserted.
	Reused
	// NoGroup: the conversation is a group that does not exist; nothing was inserted.
	NoGroup
	// Moved: the group's members are others by now than those of Message.Roster; nothing was inserted.
	Moved
)

// Result is what became of one message of a batch; for Duplicate and Reused its ids are those of the first one.
type Result struct {
	Outcome  Outcome
	MsgID    int64
	ConvID   string
	Seq      int64
	ServerAt int64
	Hash     uint64
	// Collided: MsgID was taken by another message, so another id was drawn. An alarm, since ids are unique by design.
	Collided bool
}

// Batch is what one transaction stores.
type Batch struct {
	// Messages have everything but Seq; their order within a conversation is the order of their numbers.
	Messages []Message
	// NewID draws another id and its time when one collided. Not called otherwise.
	NewID func() (msgID, serverAt int64, err error)
	// Lease is the node whose ids the messages have: the transaction fails with ErrLeaseLost if it is held no more.
	Lease NodeLease
}

// Appender stores messages.
type Appender interface {
	// Append stores a batch in one transaction and returns one result a message. It returns only when the rows are
	// durable. With an error nothing was stored, unless the error is ErrUnknown. The deadline of ctx is not a bound for
	// how long the database may take; it only keeps a transaction from being started.
	Append(ctx context.Context, b *Batch) ([]Result, error)
	// Resolve tells on a fresh connection what is durably stored under keys, after ErrUnknown. A key that is not in the
	// map is not stored and will not be by the transaction that failed. An error means: still unknown.
	Resolve(ctx context.Context, keys []Key) (map[Key]Result, error)
	// Parallel is how many Appends at once the database gains from: 1 where there is one writer.
	Parallel() int
}

// Reader reads messages. All methods may be called from any goroutine.
type Reader interface {
	// Find reads what is stored under keys; unknown ones are absent from the map.
	Find(ctx context.Context, keys []Key) (map[Key]Result, error)
	// Load reads messages by id, in no particular order; unknown ids are left out.
	Load(ctx context.Context, msgIDs []int64) ([]Message, error)
	// Scan hands the messages of a conversation above after, in order, to take until it returns false or limit is reached.
	Scan(ctx context.Context, conv string, after int64, limit int, take func(*Message) bool) error
	// Above reads the messages of one node with ids above after, in the order of their ids, limit at most.
	Above(ctx context.Context, node int, after int64, limit int) ([]Message, error)
	// Entitled lists the members of a group who may have its message of that number: who joined later may not. At most
	// limit are read.
	Entitled(ctx context.Context, group string, seq int64, limit int) ([]string, error)
}

// NodeLease is the right to give message ids of one node.
type NodeLease struct {
	Node  int
	Owner string
	// Mark is the delivery mark as it was when the node was leased.
	Mark int64
	// IDsUntil is the time in ms up to which ids of this node may have been given: new ones start above it.
	IDsUntil int64
}

// Nodes leases node ids. Times are the database host's.
type Nodes interface {
	// LeaseNode takes a node whose lease has ended and that has no messages above its mark. It prefers a new node to one
	// whose ids are ahead of the clock, as those of a process that was killed a moment ago are.
	LeaseNode(ctx context.Context, owner string, life time.Duration) (NodeLease, error)
	// RenewNode keeps the lease for life from now and allows ids up to idsUntil (ms). ErrLeaseLost when it is another's.
	RenewNode(ctx context.Context, l NodeLease, life time.Duration, idsUntil int64) error
	// SaveMark moves the delivery mark forward; a lower one is ignored. ErrLeaseLost when the node is another's.
	SaveMark(ctx context.Context, l NodeLease, mark int64) error
	// ReleaseNode ends the lease; idsUntil is the time of the last id given. Ending another's lease is no error and no effect.
	ReleaseNode(ctx context.Context, l NodeLease, idsUntil int64) error
	// TakeOver leases a node of somebody else whose lease has ended and that has messages above its mark; ok is false when
	// there is none.
	TakeOver(ctx context.Context, owner string, life time.Duration) (l NodeLease, ok bool, err error)
}

// Position is how far a user holds and has read a conversation.
type Position struct {
	UID, ConvID     string
	Delivered, Read int64
}

// Advanced is what became of one Position.
type Advanced struct {
	// Member is false when the user has no part in the conversation; nothing was written then.
	Member bool
	// Before and After are what was stored before and now; After is clamped to the conversation's last number.
	Before, After Position
}

// Conversation is the state of one conversation as one of its members sees it.
type Conversation struct {
	ConvID                              string
	MaxSeq, FloorSeq, ReadSeq           int64
	Unread, PeerDelivered, PeerRead     int64
	Delivered, ChangedAt, PeerChangedAt int64
}

// SyncQuery asks for the conversations of a user that changed at or after Since (ms), in the order of their ids, above
// the id After.
type SyncQuery struct {
	UID   string
	Since int64
	After string
	Limit int
}

// Positions keeps who is in which conversation and how far.
type Positions interface {
	// Advance moves positions forward in one transaction; lower ones are ignored, no two may be of the same user and
	// conversation. It returns one Advanced a position. at is the time of the change in ms.
	Advance(ctx context.Context, ps []Position, at int64) ([]Advanced, error)
	// Member reads a conversation as uid sees it (Unread, PeerDelivered and PeerRead excepted); ErrNotMember.
	Member(ctx context.Context, uid, conv string) (Conversation, error)
	// Conversations answers a SyncQuery. Unread looks at UnreadMax messages above the read position.
	Conversations(ctx context.Context, q SyncQuery) ([]Conversation, error)
}

// UnreadMax is how many messages above the read position Unread looks at: a client shows "99+" long before, and counting
// has a bounded cost.
const UnreadMax = 1000

// Groups keeps groups and their members.
type Groups interface {
	// CreateGroup makes a group with its first members; ErrGroupExists.
	CreateGroup(ctx context.Context, group string, members []string, at int64) error
	// AddMembers returns how many were not members before; they see nothing stored earlier. ErrNoSuchGroup.
	AddMembers(ctx context.Context, group string, members []string, at int64) (int, error)
	// RemoveMembers returns how many were members. ErrNoSuchGroup.
	RemoveMembers(ctx context.Context, group string, members []string, at int64) (int, error)
	// Roster numbers the states of a group's member list: it grows with each change. ErrNoSuchGroup.
	Roster(ctx context.Context, group string) (int64, error)
	// Members lists members above after in the order of their ids, limit at most. ErrNoSuchGroup.
	Members(ctx context.Context, group, after string, limit int) ([]string, error)
}

// HookCursor is how far a hook was told of the messages of one node, and how far it may be.
type HookCursor struct {
	Node       int
	Told, Mark int64
}

// Hooks keeps how far hooks were told. Cursors only grow and need no fence: whoever moves one has told everything below.
type Hooks interface {
	// StartHook returns the cursor of a node. Without one it begins at the mark that the node had when it was leased.
	StartHook(ctx context.Context, hook string, l NodeLease) (told int64, err error)
	// DropHook forgets the cursor: what a process without the hook stores is told to nobody.
	DropHook(ctx context.Context, hook string, node int) error
	// SaveHook moves the cursor forward; a lower one is ignored.
	SaveHook(ctx context.Context, hook string, node int, told int64) error
	// ClaimHook finds a node that no process holds and that has messages, settled ones, which the hook was not told of. It
	// is the caller's for life, or until the next claim by the same owner; ok is false when there is none.
	ClaimHook(ctx context.Context, hook, owner string, life time.Duration) (c HookCursor, ok bool, err error)
}

// Store is everything; consumers ask for the part they need.
type Store interface {
	Appender
	Reader
	Nodes
	Positions
	Groups
	Hooks
	io.Closer
}
