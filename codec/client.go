package codec

import "github.com/gobwas/ws"

// A client's frames are masked (RFC 6455, 5.3). The key comes from the caller, since this package has no randomness; a
// program that runs scripts of strangers must take it from crypto/rand, a load generator need not.

// AppendClientFrame frames one Command (protobuf bytes) as a client sends it. mask is not used on TCP. It fails with
// ErrUnencodable, and returns dst as it was.
func AppendClientFrame(p Protocol, dst, command []byte, mask [4]byte) ([]byte, error) {
	return appendCommandFrame(p, dst, command, masking{on: true, key: mask})
}

// AppendClientEcho frames one message on WebSocketEcho as a client sends it; kind is KindText or KindBinary.
func AppendClientEcho(p Protocol, dst []byte, kind Kind, message []byte, mask [4]byte) ([]byte, error) {
	return appendMessage(p, dst, messageOp(kind), message, masking{on: true, key: mask})
}

// AppendClientPing appends a ping as a client sends it. Nothing on TCP.
func AppendClientPing(p Protocol, dst, payload []byte, mask [4]byte) []byte {
	if p.Base() == TCP {
		return dst
	}
	return appendControl(dst, ws.OpPing, payload, masking{on: true, key: mask})
}

// AppendClientPong answers a ping as a client sends it. Nothing on TCP.
func AppendClientPong(p Protocol, dst, payload []byte, mask [4]byte) []byte {
	if p.Base() == TCP {
		return dst
	}
	return appendControl(dst, ws.OpPong, payload, masking{on: true, key: mask})
}

// AppendClientClose appends a close frame as a client sends it; code and text are treated as Stream.AppendClose does.
// Nothing on TCP.
func AppendClientClose(p Protocol, dst []byte, code uint16, text string, mask [4]byte) []byte {
	if p.Base() == TCP {
		return dst
	}
	return appendClose(dst, code, text, masking{on: true, key: mask})
}
