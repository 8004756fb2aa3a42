package stateclient

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// answer is how one uplink ended, on its way to a Downlink.
type answer struct {
	outcome    Outcome
	payload    []byte
	retryAfter time.Duration
	detail     string
}

const (
	// retryAfterMax: a client gives a message up after 60 s, a longer wait has no use.
	retryAfterMax = time.Minute
	// detailMax is as much of a backend's text as a log line should hold.
	detailMax = 256
)

// outcomeOf is the truth table of the design (guarantees, "What the gateway answers").
func outcomeOf(c codes.Code) Outcome {
	switch c {
	case codes.OK:
		return Answered
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.OutOfRange,
		codes.Unimplemented:
		return Refused
	case codes.ResourceExhausted:
		return Exhausted
	case codes.Unknown:
		return FailedUnknown
	default:
		return Failed
	}
}

// sick says whether a status speaks of the backend rather than of the one uplink. Unknown and Internal are what a
// handler makes of a poisonous message: if they counted, one client could open the breaker for everybody.
func sick(c codes.Code) bool { return c == codes.Unavailable || c == codes.DeadlineExceeded }

// statusAnswer is the answer for a status other than OK. text is cloned, since it may point into a receive buffer while
// a Downlink's Detail is an ordinary string.
func statusAnswer(c codes.Code, text string, retryAfter time.Duration) answer {
	a := answer{outcome: outcomeOf(c), detail: clip(text)}
	if a.outcome == Exhausted {
		a.retryAfter = min(max(retryAfter, 0), retryAfterMax)
	}
	return a
}

// clip makes a backend's text safe to keep: bounded, its own memory, valid UTF-8.
func clip(s string) string {
	if len(s) > detailMax {
		s = s[:detailMax]
	}
	return strings.Clone(strings.ToValidUTF8(s, "?"))
}
