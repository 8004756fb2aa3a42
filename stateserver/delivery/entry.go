package delivery

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// unknownDevice stands for the devices of a user that could not be looked up; it counts as one until they are.
const unknownDevice = "*"

// excluded goes before a device that is known not to owe an ack, in an entry whose devices are unknown.
const excluded = "!"

// errBadEntry means that a value in the resend table was not written by this package.
var errBadEntry = errors.New("malformed entry in the resend table")

// entry is one message that one user's devices still owe an ack for.
type entry struct {
	msgID      int64
	conv       string
	seq        int64
	receivedAt int64
	// resends so far.
	resends int
	// devices that owe; or, when unknown is set, those that do not.
	devices []string
	unknown bool
}

// owing writes the devices as the scripts read them.
func owing(devices []string) string {
	if len(devices) == 0 {
		return ","
	}
	return "," + strings.Join(devices, ",") + ","
}

// owingUnknown is the list of a user that could not be looked up, less one device that needs nothing ("" = none).
func owingUnknown(not string) string {
	if not == "" {
		return "," + unknownDevice + ","
	}
	return "," + unknownDevice + "," + excluded + not + ","
}

// parseEntry reads the value "seq received conv owing".
func parseEntry(id string, resends int, value string) (entry, error) {
	f := strings.Split(value, " ")
	if len(f) != 4 {
		return entry{}, fmt.Errorf("message %q: %w", id, errBadEntry)
	}
	e := entry{conv: f[2], resends: resends}
	var err1, err2, err3 error
	e.msgID, err1 = strconv.ParseInt(id, 10, 64)
	e.seq, err2 = strconv.ParseInt(f[0], 10, 64)
	e.receivedAt, err3 = strconv.ParseInt(f[1], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return entry{}, fmt.Errorf("message %q: %w", id, errBadEntry)
	}
	for d := range strings.SplitSeq(f[3], ",") {
		switch {
		case d == "":
		case d == unknownDevice:
			e.unknown = true
		default:
			e.devices = append(e.devices, strings.TrimPrefix(d, excluded))
		}
	}
	return e, nil
}

// pairs is how many (message, device) the entry counts for.
func (e entry) pairs() int {
	if e.unknown {
		return 1
	}
	return len(e.devices)
}

// split sorts the entry's devices by what a lookup found: those to push to, and those whose debt ends because they are
// not connected while others of the user are (they will ask for what they missed when they come back).
func (e entry) split(online []string) (push, gone []string) {
	if e.unknown {
		for _, d := range online {
			if !slices.Contains(e.devices, d) {
				push = append(push, d)
			}
		}
		return push, nil
	}
	for _, d := range e.devices {
		if slices.Contains(online, d) {
			push = append(push, d)
		} else {
			gone = append(gone, d)
		}
	}
	return push, gone
}
