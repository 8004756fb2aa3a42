// Package store keeps the messages of the reference logic tier: numbered and durable in one transaction, one row per
// (from_uid, uuid), with the unique key as the arbiter.
package store

// Message is one stored message.
type Message struct {
	// MsgID is a snowflake: milliseconds since the project's epoch, node, and a counter. Ids of one node only grow.
	MsgID int64
	// ConvID and Seq: numbers of a conversation are dense from 1; only an inserted row takes one.
	ConvID string
	Seq    int64
	// FromUID and UUID are unique together.
	FromUID    string
	UUID       string
	ReceiverID string
	Type       int32
	Content    string
	Body       []byte
	// Hash tells another payload under the same uuid: xxhash64 of receiver, type, content and body.
	Hash uint64
	// ServerAt is when it was stored, ms since 1970 by the database host's clock or this server's.
	ServerAt int64
	// Roster is which list of members a message to a group was checked against; 0 = none. Not stored.
	Roster int64
	// ReceivedAt is when the gateway received it, ms since 1970; for latency figures only, not stored.
	ReceivedAt int64
}
