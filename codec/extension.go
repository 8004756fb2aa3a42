package codec

import (
	"strconv"
	"strings"

	"github.com/gobwas/httphead"
)

const deflateName = "permessage-deflate"

// acceptDeflate finds the first offer of permessage-deflate that can be met, among the values of
// Sec-WebSocket-Extensions (RFC 7692, 7.1), and the window it allows the server. A bad offer is declined and never
// fails the upgrade; if the header itself is malformed, so are all of its offers.
func acceptDeflate(values []string) (windowBits int, ok bool) {
	for _, value := range values {
		// An offer begins where the index changes; the last one is judged at the end.
		current, offer := -1, deflateOffer{}
		wellFormed := httphead.ScanOptions([]byte(value), func(index int, option, name, param []byte) httphead.Control {
			if index != current {
				if offer.good() && !ok {
					windowBits, ok = offer.bits, true
				}
				current, offer = index, newDeflateOffer(string(option))
			}
			if name != nil {
				offer.take(string(name), string(param))
			}
			return httphead.ControlContinue
		})
		if !wellFormed {
			return 0, false
		}
		if offer.good() && !ok {
			windowBits, ok = offer.bits, true
		}
		if ok {
			return windowBits, true
		}
	}
	return 0, false
}

// deflateOffer is one offer while its parameters are read.
type deflateOffer struct {
	named bool
	bad   bool
	bits  int
	seen  []string
}

func newDeflateOffer(name string) deflateOffer {
	return deflateOffer{named: strings.EqualFold(name, deflateName), bits: windowBitsMax}
}

func (o *deflateOffer) good() bool { return o.named && !o.bad }

// take judges one parameter: unknown, doubled or out of range makes the offer bad.
func (o *deflateOffer) take(name, value string) {
	for _, s := range o.seen {
		if s == name {
			o.bad = true
			return
		}
	}
	o.seen = append(o.seen, name)
	switch name {
	case "server_no_context_takeover", "client_no_context_takeover":
		o.bad = o.bad || value != ""
	case "client_max_window_bits":
		// What the client sends fits into any window here; the value only has to be one.
		if _, valid := parseWindowBits(value); value != "" && !valid {
			o.bad = true
		}
	case "server_max_window_bits":
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
	dst = append(dst, deflateName+"; server_no_context_takeover; client_no_context_takeover"...)
	if windowBits != windowBitsMax {
		dst = strconv.AppendInt(append(dst, "; server_max_window_bits="...), int64(windowBits), 10)
	}
	return dst
}
