package proxy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

// v2 builds a header of version 2.
func v2(command, family byte, rest string) string {
	return v2Prefix + string([]byte{command, family, byte(len(rest) >> 8), byte(len(rest))}) + rest
}

const (
	four = "\xc0\x00\x02\x01\xc0\x00\x02\x02\x1f\x90\x00\x50" // 192.0.2.1:8080 to 192.0.2.2:80
	six  = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
		"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x1f\x90\x00\x50"
)

var headers = []struct {
	name, header string
	source       string // "" = not known
	err          error
}{
	{"TCP4", "PROXY TCP4 192.0.2.1 192.0.2.2 8080 80\r\n", "192.0.2.1:8080", nil},
	{"TCP6", "PROXY TCP6 2001:db8::1 2001:db8::2 8080 80\r\n", "[2001:db8::1]:8080", nil},
	{"mapped", "PROXY TCP6 ::ffff:192.0.2.1 ::1 8080 80\r\n", "192.0.2.1:8080", nil},
	{"unknown", "PROXY UNKNOWN\r\n", "", nil},
	{"unknown with addresses", "PROXY UNKNOWN a b c d e f g\r\n", "", nil},
	{"v2 TCP4", v2(0x21, 0x11, four), "192.0.2.1:8080", nil},
	{"v2 TCP4 with TLVs", v2(0x21, 0x11, four+"\x04\x00\x03abc"), "192.0.2.1:8080", nil},
	{"v2 TCP6", v2(0x21, 0x21, six), "[2001:db8::1]:8080", nil},
	{"v2 unspec", v2(0x21, 0x00, "whatever"), "", nil},
	{"v2 local", v2(0x20, 0x11, four), "", nil},
	{"v2 local, nothing", v2(0x20, 0x00, ""), "", nil},

	{"http", "GET / HTTP/1.1\r\n", "", ErrMissing},
	{"lower case", "proxy TCP4 192.0.2.1 192.0.2.2 8080 80\r\n", "", ErrMissing},
	{"no carriage return", "PROXY TCP4 192.0.2.1 192.0.2.2 8080 80\n", "", ErrBad},
	{"two carriage returns", "PROXY TCP4 192.0.2.1 192.0.2.2 8080 80\r\r\n", "", ErrBad},
	{"too long", "PROXY UNKNOWN " + strings.Repeat("x", v1Max), "", ErrBad},
	{"family and address differ", "PROXY TCP4 2001:db8::1 192.0.2.2 8080 80\r\n", "", ErrBad},
	{"bad destination", "PROXY TCP4 192.0.2.1 192.0.2.256 8080 80\r\n", "", ErrBad},
	{"bad port", "PROXY TCP4 192.0.2.1 192.0.2.2 65536 80\r\n", "", ErrBad},
	{"signed port", "PROXY TCP4 192.0.2.1 192.0.2.2 +80 80\r\n", "", ErrBad},
	{"leading zero", "PROXY TCP4 192.0.2.1 192.0.2.2 080 80\r\n", "", ErrBad},
	{"zone", "PROXY TCP6 fe80::1%eth0 ::1 80 80\r\n", "", ErrBad},
	{"UDP", "PROXY UDP4 192.0.2.1 192.0.2.2 8080 80\r\n", "", ErrBad},
	{"too few", "PROXY TCP4 192.0.2.1 192.0.2.2 8080\r\n", "", ErrBad},
	{"too many", "PROXY TCP4 192.0.2.1 192.0.2.2 8080 80 1\r\n", "", ErrBad},
	{"nothing", "PROXY \r\n", "", ErrBad},
	{"v2 version", v2(0x31, 0x11, four), "", ErrBad},
	{"v2 command", v2(0x22, 0x11, four), "", ErrBad},
	{"v2 UDP", v2(0x21, 0x12, four), "", ErrBad},
	{"v2 unix", v2(0x21, 0x31, strings.Repeat("x", 216)), "", ErrBad},
	{"v2 short", v2(0x21, 0x11, four[:11]), "", ErrBad},
	{"v2 long", v2(0x21, 0x11, strings.Repeat("x", 65535)), "", ErrBad},
}

func TestParse(t *testing.T) {
	for _, c := range headers {
		t.Run(c.name, func(t *testing.T) {
			source, n, err := Parse([]byte(c.header + "what follows"))
			if !errors.Is(err, c.err) || err == nil && n != len(c.header) {
				t.Fatalf("%d of %d bytes, %v", n, len(c.header), err)
			}
			if want, _ := netip.ParseAddrPort(c.source); source != want {
				t.Errorf("source %v, not %v", source, want)
			}
			if err == nil {
				for i := range c.header {
					if _, n, err := Parse([]byte(c.header[:i])); n != 0 || err != nil {
						t.Fatalf("the first %d bytes: %d, %v", i, n, err)
					}
				}
			}
		})
	}
}

// FuzzParse looks for panics, and for headers that mean something else when they come in pieces.
func FuzzParse(f *testing.F) {
	for _, c := range headers {
		f.Add([]byte(c.header))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		source, n, err := Parse(b)
		if n < 0 || n > len(b) || n > HeaderMax || err != nil && (n != 0 || source.IsValid()) {
			t.Fatalf("%v, %d, %v", source, n, err)
		}
		for i := range min(len(b), HeaderMax+1) {
			s, m, e := Parse(b[:i])
			switch {
			case e != nil:
				if !errors.Is(err, e) {
					t.Fatalf("%d bytes: %v, all: %v", i, e, err)
				}
			case m > 0 && (m != n || s != source):
				t.Fatalf("%d bytes: %v, %d; all: %v, %d", i, s, m, source, n)
			case m == 0 && err == nil && n > 0 && i >= n:
				t.Fatalf("%d bytes do not do, of %d", i, n)
			}
		}
	})
}
