package client

import (
	"errors"
	"fmt"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
)

// Ending is why a connection ended or could not be made. Run returns one when the client must not come back by itself.
type Ending struct {
	// Reason is one name out of the protocol's closed list; empty when the network, not the server, ended it.
	Reason string
	// Code is the close code that goes with it; 0 when there was none.
	Code uint16
	// After is the least time that the server wants to be left alone.
	After time.Duration
	// Err is what was seen here.
	Err error
}

// Error names the reason and what was seen.
func (e *Ending) Error() string {
	switch {
	case e.Err == nil:
		return "connection ended: " + e.Reason
	case e.Reason == "":
		return "connection ended: " + e.Err.Error()
	default:
		return fmt.Sprintf("connection ended: %s: %v", e.Reason, e.Err)
	}
}

// Unwrap is what was seen here.
func (e *Ending) Unwrap() error { return e.Err }

// Final reports whether the client must not connect again by itself (design: protocol 1).
func (e *Ending) Final() bool { return !reason.MayReconnect(e.Code) }

func (e *Ending) tokenExpired() bool { return e.Reason == reason.TokenExpired.String() }

// endingOf wraps whatever went wrong.
func endingOf(err error) *Ending {
	if e := (*Ending)(nil); errors.As(err, &e) {
		return e
	}
	return &Ending{Err: err}
}

// endingOfCode is a close frame. Its code need not be of the list; several reasons share a registered one.
func endingOfCode(code uint16) *Ending {
	e := &Ending{Code: code, Err: fmt.Errorf("closed by the server with code %d", code)}
	for _, r := range reason.All() {
		if r.Code() == code {
			e.Reason = r.String()
			break
		}
	}
	return e
}

// endingOfError is an ERROR that announces the end.
func endingOfError(code int32, e *clientv1.Error) *Ending {
	end := &Ending{Reason: e.Reason, Code: uint16(code), After: time.Duration(e.RetryAfterMs) * time.Millisecond}
	if known, ok := reason.Parse(e.Reason); ok && code == 0 {
		end.Code = known.Code()
	}
	if e.Detail != "" {
		end.Err = errors.New(e.Detail)
	}
	return end
}

// endingOfKick is a KICK: final whatever its code says, since protocol 1 says "do not reconnect by yourself".
func endingOfKick(code int32, k *clientv1.Kick) *Ending {
	end := &Ending{Reason: k.Reason, Code: uint16(code)}
	if !end.Final() {
		end.Code = reason.Kicked.Code()
		if known, ok := reason.Parse(k.Reason); ok && !reason.MayReconnect(known.Code()) {
			end.Code = known.Code()
		}
	}
	if k.ByDevice != "" {
		end.Err = fmt.Errorf("by device %q", k.ByDevice)
	}
	return end
}
