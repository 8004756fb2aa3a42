package secure

import "errors"

// Of a record's header (RFC 8446, 5.1): its length, and the type of those that carry a handshake.
const (
	recordHeader    = 5
	recordHandshake = 22
)

// HelloMax bounds a ClientHello's first record: the largest that TLS allows for plaintext, and its header.
const HelloMax = 16<<10 + recordHeader

var errNotTLS = errors.New("secure: not a TLS handshake")

// WholeHello reports whether p, all that a client has sent, holds the whole first record of a handshake. Until then no
// goroutine is spent on it. It fails as soon as p cannot become one.
func WholeHello(p []byte) (bool, error) {
	if len(p) > 0 && p[0] != recordHandshake || len(p) > 1 && p[1] != 3 {
		return false, errNotTLS
	}
	if len(p) < recordHeader {
		return false, nil
	}
	n := recordHeader + int(p[3])<<8 + int(p[4])
	if n > HelloMax {
		return false, errNotTLS
	}
	return len(p) >= n, nil
}
