package codec

import (
	"strings"
)

const sampleKey = "dGhlIHNhbXBsZSBub25jZQ==" // RFC 6455, 1.3.

// upgradeRequest is a good request with more header lines.
func upgradeRequest(lines ...string) string {
	return strings.Join(append([]string{
		"GET /ws HTTP/1.1", "Host: example.com", "Upgrade: websocket", "Connection: Upgrade",
		"Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + sampleKey,
	}, append(lines, "", "")...), "\r\n")
}
