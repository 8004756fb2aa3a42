package codec

import (
	"bytes"
	"strings"

	"github.com/sluice-im/sluice/api/reason"
)

const requestMethod = "GET "

// request is a parsed upgrade request. Strings are copies.
type request struct {
	path, query string

	upgrade, connection []string
	origin, userAgent   string
	traceParent         string
	key, version        string
	bearer              string
	subprotocols        []string
	extensions          []string
	forwardedFor        []string

	// How often fields stood there that may stand there once.
	hosts, keys, versions, origins, authorizations, traceParents int
}

// requestEnd finds the end of the request, empty line included; 0 = not yet. What it refuses, it refuses at the first
// byte that cannot be right, so that the answer is the same however the bytes arrive, and garbage (a TLS hello, bare
// line feeds) is not waited for.
func requestEnd(buf []byte, o *UpgradeOptions) (end int, err error) {
	if n := min(len(buf), len(requestMethod)); string(buf[:n]) != requestMethod[:n] {
		return 0, badRequest("not an HTTP GET request")
	}
	limit := o.HeaderBytes
	if limit <= 0 {
		limit = headerBytesDefault
	}
	head := buf[:min(len(buf), limit)]
	for start, lines := 0, 0; ; lines++ {
		n := bytes.IndexByte(head[start:], '\n')
		if n < 0 {
			break
		}
		at := start + n
		if n == 0 || head[at-1] != '\r' {
			return 0, badRequest("a line does not end with CR LF")
		}
		if start = at + 1; n == 1 {
			return start, nil
		}
		if lines > headersMax {
			return 0, refuse(reason.HeaderTooLarge, "too many header fields")
		}
	}
	if len(buf) >= limit {
		return 0, refuse(reason.HeaderTooLarge, "the request is too long")
	}
	return 0, nil
}

// parse reads a request that requestEnd found the end of: every line ends with CR LF, the last one is empty.
func (r *request) parse(head []byte) error {
	line, rest, _ := bytes.Cut(head, []byte("\r\n"))
	if err := r.parseRequestLine(line); err != nil {
		return err
	}
	for {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		if len(line) == 0 {
			break
		}
		name, value, err := splitField(line)
		if err != nil {
			return err
		}
		if err := r.take(name, string(value)); err != nil {
			return err
		}
	}
	if r.hosts != 1 {
		return badRequest("exactly one Host is needed")
	}
	return nil
}

func (r *request) parseRequestLine(line []byte) error {
	target, version, ok := bytes.Cut(line[len(requestMethod):], []byte(" "))
	if !ok || string(version) != "HTTP/1.1" {
		return badRequest("the request line is not GET, a path, and HTTP/1.1")
	}
	if len(target) == 0 || target[0] != '/' {
		return badRequest("the request target is not a path")
	}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return badRequest("the request target has a character that it may not have")
		}
	}
	r.path, r.query, _ = strings.Cut(string(target), "?")
	if _, ok := percentDecode(r.path); !ok {
		return badRequest("bad percent-encoding in the path")
	}
	return nil
}

// splitField takes a header line apart (RFC 9112, 5). A space before the colon and a folded line are refused, since
// what one parser takes for a name or a value another one does not.
func splitField(line []byte) (name, value []byte, err error) {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || len(name) == 0 {
		return nil, nil, badRequest("a header line has no name")
	}
	for _, c := range name {
		if !tokenByte(c) {
			return nil, nil, badRequest("a header name has a character that it may not have")
		}
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, badRequest("a header value has a control character")
		}
	}
	return name, bytes.Trim(value, " \t"), nil
}

// take files one field away; names are compared without regard to case.
func (r *request) take(name []byte, value string) error {
	switch string(bytes.ToLower(name)) {
	case "host":
		if r.hosts++; !validHost(value) {
			return badRequest("bad Host")
		}
	case "content-length", "transfer-encoding":
		return badRequest("an upgrade request has no body")
	case "upgrade":
		r.upgrade = appendList(r.upgrade, value)
	case "connection":
		r.connection = appendList(r.connection, value)
	case "sec-websocket-key":
		r.keys, r.key = r.keys+1, value
	case "sec-websocket-version":
		r.versions, r.version = r.versions+1, value
	case "sec-websocket-protocol":
		return r.takeSubprotocols(value)
	case "sec-websocket-extensions":
		r.extensions = append(r.extensions, value)
	case "origin":
		r.origins, r.origin = r.origins+1, value
	case "authorization":
		return r.takeAuthorization(value)
	case "x-forwarded-for":
		r.forwardedFor = append(r.forwardedFor, value)
	case "traceparent":
		r.traceParents, r.traceParent = r.traceParents+1, value
	case "user-agent":
		r.userAgent = value
	}
	return nil
}

func (r *request) takeSubprotocols(value string) error {
	n := len(r.subprotocols)
	r.subprotocols = appendList(r.subprotocols, value)
	for _, item := range r.subprotocols[n:] {
		for i := range len(item) {
			if !tokenByte(item[i]) {
				return badRequest("a subprotocol has a character that it may not have")
			}
		}
	}
	return nil
}

// takeAuthorization reads Bearer; another scheme is somebody else's business.
func (r *request) takeAuthorization(value string) error {
	if r.authorizations++; r.authorizations > 1 {
		return badRequest("more than one Authorization")
	}
	scheme, token, _ := strings.Cut(value, " ")
	if strings.EqualFold(scheme, "Bearer") {
		r.bearer = strings.Trim(token, " ")
	}
	return nil
}

// appendList appends the items of a comma-separated list; empty ones do not count (RFC 9110, 5.6.1).
func appendList(list []string, value string) []string {
	for value != "" {
		var item string
		item, value, _ = strings.Cut(value, ",")
		if item = strings.Trim(item, " \t"); item != "" {
			list = append(list, item)
		}
	}
	return list
}

func containsToken(list []string, token string) bool {
	for _, item := range list {
		if strings.EqualFold(item, token) {
			return true
		}
	}
	return false
}

// tokenByte knows the characters of a token (RFC 9110, 5.6.2).
func tokenByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return c != 0 && strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// validHost takes the characters of a host and a port (RFC 3986, 3.2.2) and no others; the name itself is not used.
func validHost(host string) bool {
	for i := range len(host) {
		c := host[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("-._~!$&'()*+,;=:[]%", c) >= 0:
		default:
			return false
		}
	}
	return host != ""
}

// percentDecode decodes a query value; a plus is a space, as forms have it. ok is false for a bad escape.
func percentDecode(raw string) (value string, ok bool) {
	if strings.IndexByte(raw, '%') < 0 && strings.IndexByte(raw, '+') < 0 {
		return raw, true
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case '+':
			out = append(out, ' ')
		case '%':
			if len(raw)-i < 3 {
				return "", false
			}
			high, low := unhex(raw[i+1]), unhex(raw[i+2])
			if high < 0 || low < 0 {
				return "", false
			}
			out = append(out, byte(high<<4|low))
			i += 2
		default:
			out = append(out, c)
		}
	}
	return string(out), true
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
