// Package proxy reads the header of the PROXY protocol, versions 1 and 2, as
// https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt has it, and says from whom it is believed. It does no I/O.
package proxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

var (
	// ErrMissing says that the connection begins with something else.
	ErrMissing = errors.New("proxy: no PROXY header")
	// ErrBad says that it begins like a header and is none.
	ErrBad = errors.New("proxy: bad PROXY header")
)

const (
	v1Prefix = "PROXY "
	v2Prefix = "\r\n\r\n\x00\r\nQUIT\n"
	// v1Max is the longest line of version 1, CRLF included (section 2.1).
	v1Max = 107
	// HeaderMax bounds a header of version 2 with its TLVs; the 64 KiB that its length field allows have no use.
	HeaderMax = 4 << 10
	// v2Fixed is what comes before the addresses.
	v2Fixed = 16
)

// Parse reads a PROXY header from the beginning of b. n is its length; n 0 without an error means that more bytes
// are needed. source is not valid when the proxy speaks for itself or does not know (LOCAL, UNKNOWN, UNSPEC).
func Parse(b []byte) (source netip.AddrPort, n int, err error) {
	switch {
	case hasPrefix(b, v1Prefix):
		return parseV1(b)
	case hasPrefix(b, v2Prefix):
		return parseV2(b)
	}
	return source, 0, ErrMissing
}

// hasPrefix reports that b may still become, or is, something that begins with prefix.
func hasPrefix(b []byte, prefix string) bool {
	n := min(len(b), len(prefix))
	return string(b[:n]) == prefix[:n]
}

func parseV1(b []byte) (source netip.AddrPort, n int, err error) {
	end := bytes.IndexByte(b[:min(len(b), v1Max)], '\n')
	if end < 0 {
		if len(b) >= v1Max {
			return source, 0, ErrBad
		}
		return source, 0, nil
	}
	line, ok := strings.CutSuffix(string(b[:end]), "\r")
	if !ok || strings.ContainsRune(line, '\r') {
		return source, 0, ErrBad
	}
	f := strings.Split(line, " ")
	if f[1] == "UNKNOWN" {
		return source, end + 1, nil
	}
	if len(f) != 6 || f[1] != "TCP4" && f[1] != "TCP6" {
		return source, 0, ErrBad
	}
	source, okSource := parseAddrPort(f[2], f[4], f[1] == "TCP4")
	if _, okDest := parseAddrPort(f[3], f[5], f[1] == "TCP4"); !okSource || !okDest {
		return netip.AddrPort{}, 0, ErrBad
	}
	return source, end + 1, nil
}

// parseAddrPort reads an address of the family that was announced and a decimal port without leading zeros.
func parseAddrPort(host, port string, four bool) (netip.AddrPort, bool) {
	a, err := netip.ParseAddr(host)
	if err != nil || a.Is4() != four || a.Zone() != "" {
		return netip.AddrPort{}, false
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil || strconv.FormatUint(p, 10) != port {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), true
}

func parseV2(b []byte) (source netip.AddrPort, n int, err error) {
	const local, proxied = 0x20, 0x21           // version 2 and the command
	const unspec, tcp4, tcp6 = 0x00, 0x11, 0x21 // address family and transport
	if len(b) < v2Fixed {
		return source, 0, nil
	}
	command, family := b[12], b[13]
	n = v2Fixed + int(binary.BigEndian.Uint16(b[14:]))
	if command != local && command != proxied || n > HeaderMax {
		return source, 0, ErrBad
	}
	if command == proxied {
		need, ok := map[byte]int{unspec: 0, tcp4: 12, tcp6: 36}[family]
		if !ok || n < v2Fixed+need {
			return source, 0, ErrBad
		}
	}
	if len(b) < n {
		return source, 0, nil
	}
	if command == proxied {
		switch a := b[v2Fixed:n]; family {
		case tcp4:
			source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a)), binary.BigEndian.Uint16(a[8:]))
		case tcp6:
			source = netip.AddrPortFrom(netip.AddrFrom16([16]byte(a)).Unmap(), binary.BigEndian.Uint16(a[32:]))
		}
	}
	return source, n, nil
}
