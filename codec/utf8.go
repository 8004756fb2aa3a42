package codec

import "encoding/binary"

// utf8State is where in a character a text stands (Unicode 3.9, table 3-7), so that text can be checked in pieces and
// refused at its first impossible byte.
type utf8State uint8

const (
	utf8Start utf8State = iota
	utf8Tail1           // One more continuation byte is due.
	utf8Tail2
	utf8Tail3
	utf8AfterE0 // The next byte must be A0-BF: anything lower is an overlong form.
	utf8AfterED // 80-9F: anything higher is a surrogate.
	utf8AfterF0 // 90-BF: overlong below.
	utf8AfterF4 // 80-8F: beyond U+10FFFF above.
)

// asciiMask has the high bit of eight bytes: a word without any of them is eight ASCII characters.
const asciiMask = 0x8080808080808080

// advance goes through p. ok is false at the first byte that no UTF-8 text can have there.
func (s utf8State) advance(p []byte) (next utf8State, ok bool) {
	for i := 0; i < len(p); i++ {
		if s == utf8Start {
			for len(p)-i >= 8 && binary.LittleEndian.Uint64(p[i:])&asciiMask == 0 {
				i += 8
			}
			if i == len(p) {
				break
			}
		}
		if s, ok = s.step(p[i]); !ok {
			return s, false
		}
	}
	return s, true
}

func (s utf8State) step(c byte) (next utf8State, ok bool) {
	switch s {
	case utf8Start:
		return leadByte(c)
	case utf8Tail1:
		return utf8Start, c >= 0x80 && c <= 0xbf
	case utf8Tail2:
		return utf8Tail1, c >= 0x80 && c <= 0xbf
	case utf8Tail3:
		return utf8Tail2, c >= 0x80 && c <= 0xbf
	case utf8AfterE0:
		return utf8Tail1, c >= 0xa0 && c <= 0xbf
	case utf8AfterED:
		return utf8Tail1, c >= 0x80 && c <= 0x9f
	case utf8AfterF0:
		return utf8Tail2, c >= 0x90 && c <= 0xbf
	case utf8AfterF4:
		return utf8Tail2, c >= 0x80 && c <= 0x8f
	}
	return s, false
}

func leadByte(c byte) (next utf8State, ok bool) {
	switch {
	case c < 0x80:
		return utf8Start, true
	case c < 0xc2: // Continuation bytes, and C0 and C1, which could only begin overlong forms.
		return utf8Start, false
	case c < 0xe0:
		return utf8Tail1, true
	case c == 0xe0:
		return utf8AfterE0, true
	case c == 0xed:
		return utf8AfterED, true
	case c < 0xf0:
		return utf8Tail2, true
	case c == 0xf0:
		return utf8AfterF0, true
	case c < 0xf4:
		return utf8Tail3, true
	case c == 0xf4:
		return utf8AfterF4, true
	}
	return utf8Start, false
}
