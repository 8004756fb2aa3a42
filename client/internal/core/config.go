package core

import (
	"errors"
	"time"
)

// Errors of Enqueue and History.
var (
	ErrQueueFull = errors.New("queue is full")
	ErrTooBig    = errors.New("message is bigger than a frame admits")
	ErrOffline   = errors.New("not connected")
	ErrRefused   = errors.New("refused by the server")
	ErrNoAnswer  = errors.New("no answer in time")
)

// Config holds the machine's bounds and times.
type Config struct {
	// Window is how many messages may be unanswered at once. 1 is stop-and-wait: the order holds whatever happens.
	Window int
	// QueueMax bounds the unsettled messages; the application hears of the bound by ErrQueueFull.
	QueueMax int
	// DraftsMax bounds the FAILED messages kept for a resend by hand; the oldest is forgotten.
	DraftsMax int
	// TrackedMax bounds the stored messages whose receipts are awaited; the oldest is no longer followed.
	TrackedMax int
	// FrameBytes bounds a command until the server names its own limit.
	FrameBytes int

	// Timeout is how long an answer may take before anything was measured; TimeoutMin and TimeoutMax bound the measured
	// one.
	Timeout, TimeoutMin, TimeoutMax time.Duration
	// Resends is how often an unanswered message is sent again before it is FAILED.
	Resends int
	// GiveUp is how long, connected, a message may be answered RETRY before it is FAILED.
	GiveUp time.Duration
	// LossesMax is how many connections may end under an unanswered message: one that kills its connection must not be
	// sent for ever.
	LossesMax int
	// RetryBase and RetryMax bound the growing pause after RETRY answers and failed SYNCs and PULLs.
	RetryBase, RetryMax time.Duration

	// ConversationsMax bounds the conversations known.
	ConversationsMax int
	// EarlyMax and EarlyBytes bound the messages that wait for an earlier one: per conversation, and in bytes over all.
	// One that finds no room is pulled later.
	EarlyMax, EarlyBytes int
	// GapWait is how long a gap may last before it is pulled.
	GapWait time.Duration
	// AckEvery and GroupAckEvery are the least times between two DELIVERED of a conversation: between users, of a group.
	AckEvery, GroupAckEvery time.Duration
	// ReplyTimeout is how long a SYNC_REPLY or PULL_REPLY may take.
	ReplyTimeout time.Duration
	// PullsMax bounds the PULLs under way at once, PullTries those for one gap, PullLimit the messages asked for by one.
	PullsMax, PullTries, PullLimit int
	// HistoryMax bounds the application's own pulls that wait their turn.
	HistoryMax int
}

// Default has the time budgets that the gateway and the logic tier reckon with, and bounds that cost a few MiB at the very most.
func Default() Config {
	return Config{
		Window:     1,
		QueueMax:   1000,
		DraftsMax:  1000,
		TrackedMax: 4096,
		FrameBytes: 64 << 10,

		Timeout:    5 * time.Second,
		TimeoutMin: 2 * time.Second,
		// With 3 doublings of 5 s the whole of it stays below the server's memory of uuids (5 min).
		TimeoutMax: 40 * time.Second,
		Resends:    3,
		GiveUp:     time.Minute,
		// A phone in a tunnel loses a connection now and then; 30 in a row under one message is the message's doing.
		LossesMax: 30,
		RetryBase: 100 * time.Millisecond,
		RetryMax:  5 * time.Second,

		ConversationsMax: 100_000,
		EarlyMax:         512,
		EarlyBytes:       4 << 20,
		GapWait:          200 * time.Millisecond,
		// 20 a second stay well below the gateway's default of 50 commands a second.
		AckEvery:      50 * time.Millisecond,
		GroupAckEvery: time.Second,
		ReplyTimeout:  5 * time.Second,
		PullsMax:      4,
		PullTries:     5,
		PullLimit:     200,
		HistoryMax:    64,
	}
}
