package codec

import (
	"encoding/binary"
	"math"
	"testing"
)

func tcpFrame(length uint32, body string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, length), body...)
}

func TestTCP(t *testing.T) {
	two := append(tcpFrame(1, "a"), tcpFrame(2, "bc")...)
	runScripts(t, NewStream(TCP), &Limits{FrameBytes: 10}, []script{
		{"nothing", nil, nil, nil},
		{"one", tcpFrame(3, "abc"), []string{`command "abc"`}, nil},
		{"two", two, []string{`command "a"`, `command "bc"`}, nil},
		{"one and a half", two[:len(two)-1], []string{`command "a"`}, nil},
		{"at the limit", tcpFrame(10, "0123456789"), []string{`command "0123456789"`}, nil},
		{"length 0", tcpFrame(0, ""), nil, ErrZeroLength},
		{"over the limit, nothing behind", tcpFrame(11, ""), nil, ErrFrameTooBig},
		{"2^31", tcpFrame(1<<31, ""), nil, ErrFrameTooBig},
		{"2^32-1", tcpFrame(1<<32-1, ""), nil, ErrFrameTooBig},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), nil, ErrFrameTooBig},
		{"TLS", []byte("\x16\x03\x01\x02\x00"), nil, ErrFrameTooBig},
	})
}

// A limit beyond what fits into the stream's counters must not let a length through that they cannot hold.
func TestLimitsAreClamped(t *testing.T) {
	lim := &Limits{FrameBytes: math.MaxInt, Fragments: 1}
	runScripts(t, NewStream(TCP), lim, []script{{"2^31", tcpFrame(1<<31, ""), nil, ErrFrameTooBig}})
	runScripts(t, NewStream(WebSocketEcho), lim, []script{{"2^31", wire(rawFrame{op: opBinary, claimed: 1 << 31}), nil, ErrFrameTooBig}})
}
