package core

import clientv1 "github.com/sluice-im/sluice/api/client/v1"

// State is how far a message has come. States only grow.
type State uint8

// The states, in the only direction they move.
const (
	// Local: queued here.
	Local State = iota + 1
	// Sent: on its way, unanswered.
	Sent
	// Failed: given up, and not known to be stored. A later OK, or the own message in a pull, still makes it Stored.
	Failed
	// Stored: numbered and durable at the server.
	Stored
	// Delivered: the other side holds it; in a group, at least one of them.
	Delivered
	// Read: the other side has seen it; in a group, at least one of them.
	Read
)

var stateNames = [...]string{Local: "LOCAL", Sent: "SENT", Failed: "FAILED", Stored: "STORED", Delivered: "DELIVERED", Read: "READ"}

// String is the state's name in capitals.
func (s State) String() string {
	if int(s) >= len(stateNames) || s < Local {
		return "UNKNOWN"
	}
	return stateNames[s]
}

// Settled reports whether the sending is over: Failed, Stored or beyond.
func (s State) Settled() bool { return s >= Failed }

// Message is what a command's data is marshalled from.
type Message interface {
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
}

// Effect is one thing that the shell must do. Write only counts while the connection of its input is there.
type Effect interface{ effect() }

// Write sends a command; Message may be nil.
type Write struct {
	Type    clientv1.CommandType
	Message Message
}

// Probe asks whether the connection is alive, by a heartbeat out of turn: an answer is overdue.
type Probe struct{}

// Changed is a message's new state.
type Changed struct {
	Message *clientv1.MessageUp
	State   State
	// Failed only: a name out of the closed list of reasons.
	Reason string
	// From Stored on; a logic tier of the documents gives none of them.
	ConvID     string
	Seq        int64
	MsgID      string
	ServerAtMs int64
	// Stored only: it was stored after a message that followed it.
	OutOfOrder bool
}

// Settled is the one outcome of an Enqueue: Failed or Stored, with the same fields as Changed.
type Settled struct{ Changed }

// Forget removes a message from the persisted queue.
type Forget struct{ UUID string }

// KeepDraft persists that a message failed, so that the user finds it again.
type KeepDraft struct {
	Message *clientv1.MessageUp
	Reason  string
}

// Release gives a message to the application, which answers with Consumed if ConvId and Seq are set.
type Release struct{ Message *clientv1.MessageDown }

// Receipt is how far another user holds (Delivered) or has read (Read) a conversation, or how far the user himself has
// read it on another device.
type Receipt struct {
	ConvID string
	UID    string
	Seq    int64
	State  State
}

// Standing is what a SYNC said of a conversation in which something is unread, or was read elsewhere.
type Standing struct {
	ConvID                  string
	MaxSeq, ReadSeq, Unread int64
}

// Synced says that everything the server had at the time of the (re)connect is known of, if not yet pulled.
type Synced struct{}

// MarksChanged says that Marks has something new worth persisting.
type MarksChanged struct{}

// Pulled answers a History.
type Pulled struct {
	ID       uint64
	Messages []*clientv1.MessageDown
	FloorSeq int64
	HasMore  bool
	Err      error
}

// AlarmKind names something that should not happen and that an operator wants to hear of.
type AlarmKind string

// The alarms.
const (
	// AlarmStoreWentBack: the server has less than this client has seen.
	AlarmStoreWentBack AlarmKind = "store_went_back"
	// AlarmHole: numbers that the server itself cannot produce were skipped.
	AlarmHole AlarmKind = "hole"
	// AlarmPullGivenUp: a gap stays open until the next SYNC or message.
	AlarmPullGivenUp AlarmKind = "pull_given_up"
	// AlarmConversations: a conversation was ignored since ConversationsMax are known.
	AlarmConversations AlarmKind = "conversations_full"
	// AlarmSyncUnanswered: SYNC went unanswered several times.
	AlarmSyncUnanswered AlarmKind = "sync_unanswered"
)

// Alarm reports one.
type Alarm struct {
	Kind   AlarmKind
	ConvID string
	// The numbers it is about: from (exclusive) to (inclusive).
	From, To int64
}

func (Write) effect()        {}
func (Probe) effect()        {}
func (Changed) effect()      {}
func (Settled) effect()      {}
func (Forget) effect()       {}
func (KeepDraft) effect()    {}
func (Release) effect()      {}
func (Receipt) effect()      {}
func (Standing) effect()     {}
func (Synced) effect()       {}
func (MarksChanged) effect() {}
func (Pulled) effect()       {}
func (Alarm) effect()        {}
