package client

import (
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/client/internal/core"
)

// State is how far an own message has come. States only grow: a later one is always the greater.
type State = core.State

// The states of a message. FAILED means that it is not known to be stored; it may still become STORED.
const (
	Local     = core.Local
	Sent      = core.Sent
	Failed    = core.Failed
	Stored    = core.Stored
	Delivered = core.Delivered
	Read      = core.Read
)

// Handlers are the application's callbacks; nil ones are skipped. They are called one at a time, in order, and may call
// the Client. While one blocks, what arrives waits (Config.EventsMax) and then is not read.
type Handlers struct {
	// OnMessage gets every message of a conversation once and in the order of Seq, and those that the user sent from
	// another device too. The message is confirmed (DELIVERED) when the callback returns. After a crash the last few may
	// come again, with the same ConvID and Seq.
	OnMessage func(Message)
	// OnState gets every new state of an own message.
	OnState func(StateChange)
	// OnReceipt gets how far others hold or have read a conversation, and, under the user's own id, what was read on another
	// of his devices.
	OnReceipt func(Receipt)
	// OnStanding gets, after each (re)connect, the conversations in which the server counts something unread, or of which
	// more was read than this client knew. From then on messages and receipts say what changes.
	OnStanding func(Standing)
	// OnConnection gets what happens to the connection; Closed is the last callback of all.
	OnConnection func(ConnectionEvent)
	// OnAlarm gets what should not happen: numbers that the server lost, a queue that cannot be written.
	OnAlarm func(Alarm)
}

// Message is one received message.
type Message struct {
	// ConvID and Seq are its place; a logic tier without numbers leaves them empty, and then nothing is put in order.
	ConvID  string
	Seq     int64
	MsgID   string
	UUID    string
	FromUID string
	Type    int32
	Content string
	Body    []byte
	// ServerAt is when it was stored, by the server's clock.
	ServerAt time.Time
}

func messageOf(d *clientv1.MessageDown) Message {
	return Message{
		ConvID: d.ConvId, Seq: d.Seq, MsgID: d.MsgId, UUID: d.Uuid, FromUID: d.FromUid,
		Type: d.Type, Content: d.Content, Body: d.Body, ServerAt: serverTime(d.ServerAtMs),
	}
}

func serverTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// StateChange is the state of one own message.
type StateChange struct {
	UUID  string
	To    string
	State State
	// Reason says why it is Failed, as one name out of the protocol's closed list.
	Reason string
	// From Stored on, unless the logic tier has no numbers.
	ConvID   string
	Seq      int64
	MsgID    string
	ServerAt time.Time
	// OutOfOrder: it was stored after a message that followed it.
	OutOfOrder bool
}

func changeOf(c core.Changed) StateChange {
	return StateChange{
		UUID: c.Message.Uuid, To: c.Message.ReceiverId, State: c.State, Reason: c.Reason,
		ConvID: c.ConvID, Seq: c.Seq, MsgID: c.MsgID, ServerAt: serverTime(c.ServerAtMs), OutOfOrder: c.OutOfOrder,
	}
}

// Receipt says that UID holds (Delivered) or has read (Read) the conversation up to Seq.
type Receipt struct {
	ConvID string
	UID    string
	Seq    int64
	State  State
}

// Standing is where the user is in a conversation, as the server has it: ReadSeq of MaxSeq, and how many of the messages
// above it are others'; the server stops counting at 1,000.
type Standing struct {
	ConvID                  string
	MaxSeq, ReadSeq, Unread int64
}

// ConnectionState is what happened to the connection.
type ConnectionState string

// The states of the connection.
const (
	// Connected: logged in.
	Connected ConnectionState = "connected"
	// Synced: every conversation's end is known; what was missed is being pulled.
	Synced ConnectionState = "synced"
	// Disconnected: the connection ended, or an attempt failed. The client tries again after Retry.
	Disconnected ConnectionState = "disconnected"
	// Closed: the client has ended and does not come back by itself.
	Closed ConnectionState = "closed"
)

// ConnectionEvent is one change of the connection.
type ConnectionEvent struct {
	State ConnectionState
	// Connected only.
	UID      string
	DeviceID string
	ConnID   uint64
	// Disconnected and Closed: one name out of the protocol's closed list where the server gave one, and the close code.
	Reason string
	Code   uint16
	Err    error
	// Disconnected only: how long until the next attempt.
	Retry time.Duration
}

// Alarm is something that should not happen. Kind is one of the AlarmKind names of the protocol machine, or "queue" or
// "watermarks" when they could not be written.
type Alarm struct {
	Kind   string
	ConvID string
	// The numbers it is about: above From, up to To.
	From, To int64
	Err      error
}
