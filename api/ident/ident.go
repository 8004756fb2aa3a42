// Package ident holds the alphabets of ids: users, groups, devices and uuids (design: protocol 1, "Ids"). They are checked
// at the edge, so that no id can reach a Redis key, a log line or a query with a character that means something there.
package ident

import "strings"

const (
	// UIDBytesMax bounds a user or device id.
	UIDBytesMax = 128
	// UUIDBytesMax bounds a message's uuid.
	UUIDBytesMax = 64
	groupPrefix  = "g:"
)

// Text is what the checks take: a frame's bytes are checked in place, without a copy.
type Text interface{ ~string | ~[]byte }

// ValidUID reports whether s is a user id: 1-128 characters of A-Z a-z 0-9 _ . @ -. Device ids have the same alphabet.
func ValidUID[T Text](s T) bool {
	if len(s) == 0 || len(s) > UIDBytesMax {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '@', c == '-':
		default:
			return false
		}
	}
	return true
}

// ValidGroup reports whether s is a group id: g: and 1-128 characters of the same alphabet.
func ValidGroup[T Text](s T) bool {
	return len(s) > len(groupPrefix) && s[0] == 'g' && s[1] == ':' && ValidUID(s[len(groupPrefix):])
}

// ValidReceiver reports whether s is a user or a group id.
func ValidReceiver[T Text](s T) bool { return ValidUID(s) || ValidGroup(s) }

// ValidUUID reports whether s is 1-64 printable ASCII characters (0x21-0x7e, so no space).
func ValidUUID[T Text](s T) bool {
	if len(s) == 0 || len(s) > UUIDBytesMax {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// Conversation is the id of the conversation between a sender and a receiver: the group's own id, or u:{lower}:{higher}
// of the two users, sorted as strings. The users' alphabet has no colon, so the id is unambiguous.
func Conversation(from, receiver string) string {
	if ValidGroup(receiver) {
		return receiver
	}
	if receiver < from {
		from, receiver = receiver, from
	}
	return "u:" + from + ":" + receiver
}

// Users are the two users of a conversation between users; ok is false for a group's, or for no conversation at all.
func Users(conv string) (lower, higher string, ok bool) {
	rest, ok := strings.CutPrefix(conv, "u:")
	if !ok {
		return "", "", false
	}
	lower, higher, ok = strings.Cut(rest, ":")
	return lower, higher, ok && ValidUID(lower) && ValidUID(higher) && lower <= higher
}
