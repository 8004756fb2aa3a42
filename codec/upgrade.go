package codec

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/sluice-im/sluice/api/reason"
)

const (
	// SubprotocolProtobuf carries protobuf in binary messages.
	SubprotocolProtobuf = "sluice.v1.pb"
	// SubprotocolJSON carries JSON in text messages.
	SubprotocolJSON = "sluice.v1.json"
	// SubprotocolBearer is followed by a token: the one way in which a browser can send one outside of the URL.
	SubprotocolBearer = "bearer."

	// headersMax bounds the header fields of a request; browsers behind two proxies send about 25.
	headersMax = 100
	// headerBytesDefault bounds the request when UpgradeOptions does not.
	headerBytesDefault = 8 << 10

	keyBytes       = 16 // Of Sec-WebSocket-Key, decoded (RFC 6455, 4.1).
	versionOffered = "13"
)

// UpgradeOptions is what a listener accepts. It is not changed by ParseUpgrade and may be shared.
type UpgradeOptions struct {
	// Path must be the request's, byte for byte; the query does not belong to it. Empty = any.
	Path string
	// Origins lists the origins (scheme://host[:port], as browsers send them) that may connect; a request without Origin
	// does not come from a browser and always may. Empty = any: a token is asked for and no cookie is ever looked at, so
	// a foreign page gains nothing by connecting.
	Origins []string
	// HeaderBytes bounds the request up to its empty line. 0 = 8 KiB.
	HeaderBytes int
	// TokenInQuery takes ?token=T, which ends up in the logs of everything on the way.
	TokenInQuery bool
	// Deflate answers an offer of permessage-deflate.
	Deflate bool
	// Echo makes every connection a WebSocketEcho.
	Echo bool
}

// Upgrade is what a good request asked for. Strings are copies, percent-decoded where they come from the query, and not
// checked against any alphabet.
type Upgrade struct {
	// Protocol is for NewStream.
	Protocol Protocol
	// Subprotocol is what the response names; empty when none of ours was asked for.
	Subprotocol string
	// Token is the credential: of Authorization, else of the subprotocols, else of the query; empty = LOGIN must follow.
	Token string

	DeviceID, SessionID, Platform string

	Origin    string
	UserAgent string
	// ForwardedFor is X-Forwarded-For as it came, several joined by ", ". Whether to believe it is the caller's decision.
	ForwardedFor string
	// TraceParent is the traceparent header (W3C Trace Context, 3.2); empty when there is none that is well-formed.
	TraceParent string

	key [base64Bytes]byte
}

// base64Bytes is the encoded size of a key.
const base64Bytes = (keyBytes + 2) / 3 * 4

// UpgradeError is why a request is refused. Its reason has an HTTP status.
type UpgradeError struct {
	Reason reason.Reason
	// Detail is for the one who wrote the client; nothing of the request is in it.
	Detail string
}

// Error names the reason and the detail.
func (e *UpgradeError) Error() string {
	if e.Detail == "" {
		return "upgrade: " + e.Reason.String()
	}
	return "upgrade: " + e.Reason.String() + ": " + e.Detail
}

func refuse(r reason.Reason, detail string) error { return &UpgradeError{Reason: r, Detail: detail} }

func badRequest(detail string) error { return refuse(reason.BadRequest, detail) }

// ParseUpgrade reads a WebSocket upgrade request (RFC 6455, 4.2.1; RFC 9112), which must be complete: consumed 0 and no
// error means "not yet". Bytes behind the request are not consumed. An error is an *UpgradeError, to be answered with
// AppendUpgradeError and a close: nothing behind a refused request may be interpreted.
func ParseUpgrade(buf []byte, o *UpgradeOptions) (u Upgrade, consumed int, err error) {
	end, err := requestEnd(buf, o)
	if err != nil || end == 0 {
		return Upgrade{}, 0, err
	}
	var r request
	if err := r.parse(buf[:end]); err != nil {
		return Upgrade{}, 0, err
	}
	if err := r.check(o); err != nil {
		return Upgrade{}, 0, err
	}
	u = Upgrade{Origin: r.origin, UserAgent: r.userAgent, ForwardedFor: strings.Join(r.forwardedFor, ", ")}
	if r.traceParents == 1 && validTraceParent(r.traceParent) {
		u.TraceParent = r.traceParent
	}
	copy(u.key[:], r.key)
	if err := u.negotiate(&r, o); err != nil {
		return Upgrade{}, 0, err
	}
	if err := u.readQuery(&r, o); err != nil {
		return Upgrade{}, 0, err
	}
	return u, end, nil
}

// check judges a well-formed request: first what it asks for, then how.
func (r *request) check(o *UpgradeOptions) error {
	switch {
	case o.Path != "" && r.path != o.Path:
		return refuse(reason.NotFound, "no WebSocket endpoint at this path")
	case !containsToken(r.upgrade, "websocket"), !containsToken(r.connection, "upgrade"):
		return refuse(reason.UpgradeRequired, "this is a WebSocket endpoint: connect with ws:// or wss://, "+
			"which sends Upgrade: websocket and Connection: Upgrade")
	case r.versions == 0 || r.versions == 1 && r.version != versionOffered:
		return refuse(reason.UpgradeRequired, "Sec-WebSocket-Version must be "+versionOffered)
	case r.versions > 1:
		return badRequest("more than one Sec-WebSocket-Version")
	case r.keys != 1:
		return badRequest("exactly one Sec-WebSocket-Key is needed")
	case !validKey(r.key):
		return badRequest("Sec-WebSocket-Key is not 16 bytes in base64")
	case r.origins > 1:
		return badRequest("more than one Origin")
	case r.origins == 1 && len(o.Origins) > 0 && !slices.Contains(o.Origins, r.origin):
		return refuse(reason.OriginRefused, "this origin is not allowed")
	}
	return nil
}

// validTraceParent: what has another form starts a trace of its own, it is no reason to refuse (W3C Trace Context, 3.2.2
// and 3.2.4). A later version may add fields at the end, so only version 00 has a fixed length.
func validTraceParent(s string) bool {
	const form = "00-00000000000000000000000000000000-0000000000000000-00"
	if len(s) < len(form) || len(s) > traceParentMax || s[:2] == "ff" || s[:2] == "00" && len(s) != len(form) {
		return false
	}
	for i := range len(form) {
		c := s[i]
		if form[i] == '-' && c != '-' || form[i] == '0' && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	if len(s) > len(form) && s[len(form)] != '-' {
		return false
	}
	return s[3:35] != form[3:35] && s[36:52] != form[36:52]
}

// traceParentMax bounds what is kept of a connection and goes with each of its frames.
const traceParentMax = 128

func validKey(key string) bool {
	var decoded [base64Bytes]byte
	if len(key) != base64Bytes {
		return false
	}
	n, err := base64.StdEncoding.Strict().Decode(decoded[:], []byte(key))
	return err == nil && n == keyBytes
}

// negotiate settles subprotocol, token and extension.
func (u *Upgrade) negotiate(r *request, o *UpgradeOptions) error {
	u.Protocol, u.Token = WebSocket, r.bearer
	var offered string
	for _, item := range r.subprotocols {
		if token, ok := strings.CutPrefix(item, SubprotocolBearer); ok {
			if offered != "" {
				return badRequest("more than one " + SubprotocolBearer + " subprotocol")
			}
			offered = token
			continue
		}
		if u.Subprotocol != "" { // The client's order is its preference.
			continue
		}
		switch item {
		case SubprotocolProtobuf:
			u.Subprotocol = item
		case SubprotocolJSON:
			u.Subprotocol, u.Protocol = item, WebSocketJSON
		}
	}
	if u.Token == "" {
		u.Token = offered
	}
	if o.Echo {
		u.Protocol = WebSocketEcho
	}
	if o.Deflate {
		if bits, ok := acceptDeflate(r.extensions); ok {
			u.Protocol = u.Protocol.WithDeflate(bits)
		}
	}
	return nil
}

// readQuery takes the parameters that are ours; each may stand there once, others are ignored.
func (u *Upgrade) readQuery(r *request, o *UpgradeOptions) error {
	var token string
	slots := map[string]*string{
		"device_id": &u.DeviceID, "session_id": &u.SessionID, "platform": &u.Platform, "token": &token,
	}
	for rest := r.query; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		name, raw, _ := strings.Cut(pair, "=")
		slot, ours := slots[name]
		if !ours {
			continue
		}
		if slot == nil {
			return badRequest("a query parameter stands twice")
		}
		value, ok := percentDecode(raw)
		if !ok {
			return badRequest("bad percent-encoding in the query")
		}
		*slot, slots[name] = value, nil
	}
	if u.Token != "" || token == "" {
		return nil
	}
	if !o.TokenInQuery {
		return refuse(reason.BadToken, "a token in the URL is not accepted here: send Authorization: Bearer, "+
			"or the subprotocol "+SubprotocolBearer+"TOKEN")
	}
	u.Token = token
	return nil
}
