package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-im/sluice/client/internal/core"
)

// Errors of Send, Pull, Wait and Run.
var (
	// ErrQueueFull: as many messages are unsettled as Config.QueueMax admits.
	ErrQueueFull = core.ErrQueueFull
	// ErrTooBig: Content and Body together exceed the frame limit less 2 KiB.
	ErrTooBig = core.ErrTooBig
	// ErrOffline: Pull needs a connection.
	ErrOffline = core.ErrOffline
	// ErrRefused: the server refuses the Pull.
	ErrRefused = core.ErrRefused
	// ErrNoAnswer: the server did not answer the Pull.
	ErrNoAnswer = core.ErrNoAnswer
	// ErrClosed: the client has ended. What was unsettled stays in the Queue.
	ErrClosed = errors.New("client is closed")
	// ErrRunning: Run was called twice.
	ErrRunning = errors.New("client runs already, or has run")
	// ErrOtherUser: the Watermarks belong to another user than the token.
	ErrOtherUser = errors.New("watermarks belong to another user")
)

// FailedError is the outcome of a message that is not known to be stored.
type FailedError struct {
	// Reason is one name out of the protocol's closed list.
	Reason string
}

// Error names the reason.
func (e *FailedError) Error() string { return fmt.Sprintf("not known to be stored: %s", e.Reason) }

// Outgoing follows one sending. Its methods may be called from everywhere.
type Outgoing struct {
	uuid string
	// outcome and err are written before done is closed, and never again.
	outcome StateChange
	err     error
	done    chan struct{}
}

func newOutgoing(uuid string) *Outgoing { return &Outgoing{uuid: uuid, done: make(chan struct{})} }

// UUID identifies the message.
func (o *Outgoing) UUID() string { return o.uuid }

// Done is closed when there is an outcome: stored, failed, or the client has ended before either.
func (o *Outgoing) Done() <-chan struct{} { return o.done }

// Wait returns the outcome. Stored: its place in the conversation, and no error. Failed: a *FailedError. ErrClosed: the
// client ended first; the message is still in the Queue. Else ctx ended first. Later states come by OnState only.
func (o *Outgoing) Wait(ctx context.Context) (StateChange, error) {
	select {
	case <-o.done:
		return o.outcome, o.err
	case <-ctx.Done():
		return StateChange{}, ctx.Err()
	}
}

func (o *Outgoing) settle(outcome StateChange) {
	o.outcome = outcome
	if outcome.State == Failed {
		o.err = &FailedError{Reason: outcome.Reason}
	}
	close(o.done)
}

func (o *Outgoing) abandon() {
	o.err = ErrClosed
	close(o.done)
}
