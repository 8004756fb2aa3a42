package codec

import (
	"testing"
	"unicode/utf8"
)

var badUTF8 = []string{
	"\x80", "\xbf", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe0\x9f\xbf", "\xf0\x80\x80\xaf", "\xf0\x8f\xbf\xbf", "\xed\xa0\x80",
	"\xed\xbf\xbf", "\xed\xa0\x80\xed\xb0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf8\x88\x80\x80\x80", "\xfe", "\xff",
	"\xc3\x28", "\xe2\x82\x28", "\xf0\x9f\x98\x28", "ok\xffok", "12345678\xff", "1234567\xc3\x28",
}

// Every pair of bytes, by itself and before every kind of tail, judged as the standard library does.
func TestUTF8AgainstStandardLibrary(t *testing.T) {
	check := func(p []byte) {
		end, ok := utf8Start.advance(p)
		if got := ok && end == utf8Start; got != utf8.Valid(p) {
			t.Fatalf("%x: valid = %v", p, got)
		}
	}
	tails := []string{"", "\x80", "\xbf", "\x7f", "\xc0", "\x80\x80", "\xbf\xbf", "\x7f\x80", "\x80\xc0", "\x80a", "\x80\x80\x80"}
	for v := range 1 << 16 {
		for _, tail := range tails {
			check(append([]byte{byte(v >> 8), byte(v)}, tail...))
		}
	}
}

// Text is refused at the first byte that cannot be right: no continuation of what was taken is impossible.
func TestUTF8RefusesNothingTooLate(t *testing.T) {
	for _, s := range badUTF8 {
		state := utf8Start
		for i := range len(s) {
			next, ok := state.step(s[i])
			if !ok {
				break
			}
			if state = next; !completes(state) {
				t.Errorf("%x: after byte %d nothing can follow, and it was taken", s, i)
			}
		}
	}
}

// completes reports whether some bytes lead from s to the end of a character.
func completes(s utf8State) bool {
	for range 4 {
		if s == utf8Start {
			return true
		}
		for c := range 256 {
			if next, ok := s.step(byte(c)); ok {
				s = next
				break
			}
		}
	}
	return false
}
