package codec

import (
	"slices"
	"strconv"
	"strings"
)

const (
	deflateName = "permessage-deflate"

	serverNoTakeover = "server_no_context_takeover"
	clientNoTakeover = "client_no_context_takeover"
	serverWindowBits = "server_max_window_bits"
	clientWindowBits = "client_max_window_bits"
)

// acceptDeflate finds the first offer of permessage-deflate that can be met among the values of
// Sec-WebSocket-Extensions (RFC 7692, 7.1), and the window that it allows the server. A bad offer is declined and never
// fails the upgrade; behind a malformed one nothing is looked at, since it is not known where it ends.
func acceptDeflate(values []string) (windowBits int, ok bool) {
	for _, value := range values {
		for value != "" {
			offer, rest, wellFormed := nextOffer(value)
			if !wellFormed {
				return 0, false
			}
			if offer.named && !offer.bad {
				return offer.bits, true
			}
			value = rest
		}
	}
	return 0, false
}

// deflateOffer is what an offer asks of the server.
type deflateOffer struct {
	named bool // It is one of permessage-deflate.
	bad   bool // A parameter is unknown, doubled or out of range.
	bits  int
	seen  []string
}

// nextOffer reads one offer, name *( ";" param [ "=" value ] ), and what follows its comma.
func nextOffer(text string) (offer deflateOffer, rest string, wellFormed bool) {
	name, text := cutToken(text)
	if name == "" { // Empty list items do not count (RFC 9110, 5.6.1).
		rest, isEmpty := strings.CutPrefix(text, ",")
		return offer, rest, isEmpty || text == ""
	}
	offer = deflateOffer{named: strings.EqualFold(name, deflateName), bits: windowBitsMax}
	for {
		if text == "" {
			return offer, "", true
		}
		if rest, next := strings.CutPrefix(text, ","); next {
			return offer, rest, true
		}
		param, more := strings.CutPrefix(text, ";")
		if !more {
			return offer, "", false
		}
		var value string
		if name, text = cutToken(param); name == "" {
			return offer, "", false
		}
		if assigned, has := strings.CutPrefix(text, "="); has {
			if value, text = cutValue(assigned); value == "" {
				return offer, "", false
			}
		}
		offer.take(name, value)
	}
}

// cutToken cuts a token off, and the white space around it; it is empty if there is none.
func cutToken(text string) (token, rest string) {
	text = strings.TrimLeft(text, " \t")
	n := 0
	for n < len(text) && tokenByte(text[n]) {
		n++
	}
	return text[:n], strings.TrimLeft(text[n:], " \t")
}

// cutValue is cutToken for a value, which may be a token in quotes.
func cutValue(text string) (value, rest string) {
	quoted, isQuoted := strings.CutPrefix(strings.TrimLeft(text, " \t"), `"`)
	if !isQuoted {
		return cutToken(text)
	}
	value, rest = cutToken(quoted)
	rest, closed := strings.CutPrefix(rest, `"`)
	if !closed {
		return "", rest
	}
	return value, strings.TrimLeft(rest, " \t")
}

// take judges one parameter; value is empty if it has none.
func (o *deflateOffer) take(name, value string) {
	if o.bad || slices.Contains(o.seen, name) { // Once bad, it keeps nothing more: seen never holds more than there are names.
		o.bad = true
		return
	}
	o.seen = append(o.seen, name)
	switch name {
	case serverNoTakeover, clientNoTakeover:
		o.bad = o.bad || value != ""
	case clientWindowBits:
		// What the client sends fits into any window here; the value only has to be one.
		if _, valid := parseWindowBits(value); value != "" && !valid {
			o.bad = true
		}
	case serverWindowBits:
		bits, valid := parseWindowBits(value)
		if !valid || bits < windowBitsMin {
			o.bad = true
			return
		}
		o.bits = bits
	default:
		o.bad = true
	}
}

// parseWindowBits reads 8-15, without a leading zero (RFC 7692, 7.1.2).
func parseWindowBits(value string) (bits int, ok bool) {
	bits, err := strconv.Atoi(value)
	return bits, err == nil && bits >= 8 && bits <= windowBitsMax && strconv.Itoa(bits) == value
}

// appendDeflateAnswer appends the one answer that there is. The window is named only where the offer asked for a
// smaller one.
func appendDeflateAnswer(dst []byte, windowBits int) []byte {
	dst = append(dst, deflateName+"; "+serverNoTakeover+"; "+clientNoTakeover...)
	if windowBits != windowBitsMax {
		dst = strconv.AppendInt(append(dst, "; "+serverWindowBits+"="...), int64(windowBits), 10)
	}
	return dst
}
