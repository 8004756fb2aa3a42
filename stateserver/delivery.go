package stateserver

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-im/sluice/stateserver/store"
)

// Task is one stored message and its receivers.
type Task struct {
	Message store.Message
	// Receivers are uids; the sender's own is among them, for his other devices.
	Receivers []string
	// SenderDevice is the device of Message.FromUID that gets no push: its MESSAGEACK counts as receipt.
	SenderDevice string
	// Settled, when it is not nil, is called once when the message is enrolled or was found offline for every receiver.
	Settled func()
}

// Notice is a command for all devices of some users but one.
type Notice struct {
	UIDs []string
	// Command must not be changed afterwards.
	Command []byte
	// NotUID and NotDevice are the device that is left out; empty = none.
	NotUID, NotDevice string
}

// Deliverer is the downlink half: what becomes of a message after it is stored.
type Deliverer interface {
	// Begin says, before COMMIT, that these ids are in use: the delivery mark must not pass them.
	Begin(msgIDs []int64)
	// Abandon says that these ids are known not to be stored.
	Abandon(msgIDs []int64)
	// Enqueue takes stored messages, in order per conversation; it blocks while its queue is full.
	Enqueue(ctx context.Context, tasks []Task) error
	// Acked takes a client's cumulative ack.
	Acked(ctx context.Context, uid, device, conv string, seq int64) (advanced bool, err error)
	// Notify pushes a command, best effort.
	Notify(n Notice)
}

// Delivery is a Deliverer that has work of its own; Run returns when ctx ends.
type Delivery interface {
	Deliverer
	Run(ctx context.Context) error
}

// DeliveryParts is what a Delivery needs of the StateServer that it belongs to.
type DeliveryParts struct {
	// Load finds stored messages for resends; ids that are not stored are left out.
	Load func(ctx context.Context, msgIDs []int64) ([]store.Message, error)
	// SaveMark records the delivery mark of this process's node.
	SaveMark func(ctx context.Context, msgID int64) error
	// Redeliver passes the rows of this node above its mark to Enqueue again; to be called when entries of the resend
	// table may have been lost, or messages could not be enrolled for long.
	Redeliver func(ctx context.Context)
	// Offline, when it is not nil, is called for each message before it is settled, with those of its receivers, the
	// sender excepted, who were offline; Gone for each receiver who was found to be so later. They must not block.
	Offline    func(msgID int64, offline []string)
	Gone       func(uid string, msgID int64)
	Registerer prometheus.Registerer
	Log        *slog.Logger
	Failpoint  func(name string)
}
