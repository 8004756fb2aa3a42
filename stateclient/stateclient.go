// Package stateclient is the way to the logic tier: the relay (batches on a stream, or one unary call a frame), the
// backends it spreads over, and their breakers. The route table is the package routes below it.
package stateclient

import (
	"context"
	"time"
)

// Kind says what an Uplink is.
type Kind uint8

const (
	// KindFrame is one command of a client.
	KindFrame Kind = iota
	// KindConnect announces a connection, before its first frame.
	KindConnect
	// KindDisconnect ends it, after its last frame.
	KindDisconnect
)

// Peer is what the logic tier is told of a connection with each of its frames. It is fixed from login on and shared by
// all uplinks of the connection.
type Peer struct {
	ConnID     uint64
	UID        string
	DeviceID   string
	Platform   string
	SessionID  string
	Epoch      int64
	RemoteAddr string

	// flight is the relay's own: where the connection's uplinks are. It begins as its zero value; a Peer must not be
	// copied once it was submitted.
	flight flight
}

// Uplink is one frame, or the start or end of a connection, on its way to the logic tier.
type Uplink struct {
	Peer *Peer
	// Seq numbers the uplinks of one connection from 1.
	Seq  uint64
	Kind Kind
	// Payload is the Command as it came. The relay owns it from Submit until the answer was given.
	Payload []byte
	// Received is when the gateway read the frame; its deadline is Received plus Config.Timeout.
	Received time.Time
	// Reason is set on KindDisconnect.
	Reason string
	// TraceParent is a W3C traceparent, or empty.
	TraceParent string
}

// Outcome is how an uplink ended.
type Outcome uint8

const (
	// Answered: the logic tier's payload is to be written as it is; it may be empty.
	Answered Outcome = iota
	// Refused: a status that says "no effect, and no use in trying again".
	Refused
	// Exhausted: ResourceExhausted; RetryAfter is the logic tier's.
	Exhausted
	// Failed: any other status. It may have happened.
	Failed
	// FailedUnknown is Failed with status Unknown: counted per uuid by the gateway.
	FailedUnknown
	// TimedOut: no answer before the deadline. It may have happened.
	TimedOut
	// NoBackend: never sent, no backend could take it.
	NoBackend
	// Broken: its stream broke after it was sent. It may have happened.
	Broken
)

// Downlink ends one Uplink: every submitted Uplink gets exactly one, with its ConnID and Seq.
type Downlink struct {
	ConnID uint64
	Seq    uint64
	Kind   Kind
	// Outcome other than Answered has no payload.
	Outcome Outcome
	// Payload is valid until Answers returns.
	Payload    []byte
	RetryAfter time.Duration
	Detail     string
}

// Sink takes the answers. Answers of one connection come in the order of their Seq and never two calls at once for one
// connection; calls for different connections may come from several goroutines. It must not block.
type Sink interface {
	Answers(batch []Downlink)
}

// Relay carries uplinks. On every stream, and in mode unary to every backend, it announces a connection before its first
// frame there: by the gateway's own KindConnect, or by one of its own, which has conn_seq 0, since it takes no number, and
// whose answer nobody sees.
//
// Submit may be called from any goroutine, for one connection only from one at a time.
type Relay interface {
	// Submit takes as many of pass as the queues have room for, from the front of each connection's own order, and
	// reports for each uplink whether it was taken: len(taken) >= len(pass). An uplink that was not taken will get no
	// answer; once one uplink of a connection is refused, the later ones of the same connection in pass are too. When a
	// queue that refused has room again, Config.Room is called with the connections that were refused.
	Submit(pass []Uplink, taken []bool)
	// Authenticate asks the logic tier whether a connection may log in, and as whom (auth mode backend): one unary
	// Connect with the token, in both modes. It blocks until the answer, the end of ctx or Close.
	Authenticate(ctx context.Context, l Login) (Grant, error)
	// Ready says whether at least one backend can take uplinks now.
	Ready() bool
	// Close answers everything that is in flight as Broken or NoBackend and ends every goroutine of the relay.
	Close()
}
