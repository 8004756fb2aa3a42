package secure

import "errors"

// Of a record's header (RFC 8446, 5.1): its length, and the type of those that carry a handshake. Of a handshake message
// (RFC 8446, 4): its header's length and the type of a ClientHello.
const (
	recordHeader    = 5
	recordHandshake = 22
	messageHeader   = 4
	messageHello    = 1
)

// HelloMax bounds a ClientHello: the largest record that TLS allows for plaintext, and its header.
const HelloMax = 16<<10 + recordHeader

var errNotTLS = errors.New("secure: not a TLS handshake")

// WholeHello reports whether p, all that a client has sent, holds a whole ClientHello, in however many records. Until then
// no goroutine is spent on it. It fails as soon as p cannot become one.
func WholeHello(p []byte) (bool, error) {
	have, want := 0, messageHeader // bytes of the message
	var head [messageHeader]byte
	for at := 0; have < want; {
		rest := p[at:]
		if len(rest) > 0 && rest[0] != recordHandshake || len(rest) > 1 && rest[1] != 3 {
			return false, errNotTLS
		}
		if len(rest) < recordHeader {
			return false, nil
		}
		n := int(rest[3])<<8 + int(rest[4])
		if n == 0 || at+recordHeader+n > HelloMax {
			return false, errNotTLS
		}
		body := rest[recordHeader:min(len(rest), recordHeader+n)]
		for i := 0; i < len(body) && have+i < messageHeader; i++ {
			head[have+i] = body[i]
		}
		if have+len(body) >= messageHeader {
			if want = messageHeader + int(head[1])<<16 + int(head[2])<<8 + int(head[3]); head[0] != messageHello || want > HelloMax {
				return false, errNotTLS
			}
		}
		if len(body) < n {
			return false, nil
		}
		have += n
		at += recordHeader + n
	}
	return true, nil
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
