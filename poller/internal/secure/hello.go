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

// halves gives a ClientHello to crypto/tls as two records instead of one, which RFC 8446, 5.1 allows and no signature
// covers. crypto/tls keeps a buffer of the size of the largest record so far, and some, for the whole life of a connection;
// with a key share of ML-KEM the hello is by far the largest that a quiet client ever sends. Half of it saves 768 of 6,900
// bytes a connection; more pieces would make crypto/tls's other buffer, of the whole message, grow by more than they save.
type halves struct {
	begun  bool
	first  int    // bytes of the first half that are still to come
	header []byte // of the second half, what is still to come of it
}

// receive is link.Receive but for the additional header. p has room for a header at the first call, and the link has one:
// WholeHello has seen it.
func (h *halves) receive(link Link, p []byte) (int, error) {
	switch {
	case !h.begun:
		h.begun = true
		n, err := link.Receive(p[:min(len(p), recordHeader)])
		if n == recordHeader {
			h.split(p[:n])
		}
		return n, err
	case h.first > 0:
		n, err := link.Receive(p[:min(len(p), h.first)])
		h.first -= n
		return n, err
	case len(h.header) > 0:
		n := copy(p, h.header)
		h.header = h.header[n:]
		return n, nil
	}
	return link.Receive(p)
}

// split makes header that of the first half.
func (h *halves) split(header []byte) {
	size := int(header[3])<<8 + int(header[4])
	h.first = size / 2
	if h.first == 0 {
		return
	}
	h.header = append(h.header, header[:3]...)
	h.header = append(h.header, byte((size-h.first)>>8), byte(size-h.first))
	header[3], header[4] = byte(h.first>>8), byte(h.first)
}
