package codec

import (
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"

	"github.com/sluice-im/sluice/api/reason"
)

// acceptGUID is mixed into the key (RFC 6455, 1.3); SHA-1 is no secret keeper here, the RFC fixes it.
const acceptGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

// AppendUpgradeResponse appends the 101 response that accepts u.
func AppendUpgradeResponse(dst []byte, u *Upgrade) []byte {
	dst = append(dst, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "...)
	dst = appendAccept(dst, u.key[:])
	if u.Subprotocol != "" {
		dst = append(append(dst, "\r\nSec-WebSocket-Protocol: "...), u.Subprotocol...)
	}
	if bits := u.Protocol.windowBits(); bits != 0 {
		dst = appendDeflateAnswer(append(dst, "\r\nSec-WebSocket-Extensions: "...), bits)
	}
	return append(dst, "\r\n\r\n"...)
}

func appendAccept(dst, key []byte) []byte {
	sum := sha1.Sum(append(append(make([]byte, 0, len(key)+len(acceptGUID)), key...), acceptGUID...))
	return base64.StdEncoding.AppendEncode(dst, sum[:])
}

// AppendUpgradeError appends the complete HTTP response that refuses an upgrade; the connection is to be closed behind
// it. The body is one line, the reason's name and the detail of an *UpgradeError. Any other error is answered as
// reason internal, without its text.
func AppendUpgradeError(dst []byte, err error) []byte {
	refused := &UpgradeError{Reason: reason.Internal}
	if e := (*UpgradeError)(nil); errors.As(err, &e) {
		refused = e
	}
	status := refused.Reason.Status()
	if status == 0 { // A reason that never ends an upgrade: the caller took the wrong one.
		status = http.StatusInternalServerError
	}
	dst = strconv.AppendInt(append(dst, "HTTP/1.1 "...), int64(status), 10)
	dst = append(append(append(dst, ' '), http.StatusText(status)...), "\r\n"...)
	switch status {
	case http.StatusUpgradeRequired:
		dst = append(dst, "Connection: close, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: "+versionOffered+"\r\n"...)
	case http.StatusUnauthorized:
		dst = append(dst, "Connection: close\r\nWWW-Authenticate: Bearer\r\n"...)
	default:
		dst = append(dst, "Connection: close\r\n"...)
	}
	body := refused.Reason.String()
	if refused.Detail != "" {
		body += ": " + refused.Detail
	}
	dst = append(dst, "Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nContent-Length: "...)
	dst = append(strconv.AppendInt(dst, int64(len(body)+1), 10), "\r\n\r\n"...)
	return append(append(dst, body...), '\n')
}
