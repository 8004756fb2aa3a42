package codec

import (
	"bytes"
	"encoding/json"
)

// members calls visit for every member of an object, in order, until visit returns false. text must be valid JSON; it
// reports false if it is not an object, is nested deeper than jsonDepthMax, or visit stopped it. Values alias text.
func members(text []byte, visit func(key string, value []byte) bool) bool {
	rest, ok := bytes.CutPrefix(trimSpace(text), []byte("{"))
	if !ok {
		return false
	}
	for {
		rest = trimSpace(rest)
		if len(rest) == 0 || rest[0] == '}' {
			return len(rest) > 0
		}
		rest = trimSpace(bytes.TrimPrefix(rest, []byte(",")))
		n := valueEnd(rest)
		if n <= 0 {
			return false
		}
		key, ok := memberKey(rest[:n])
		if !ok {
			return false
		}
		rest = trimSpace(bytes.TrimPrefix(trimSpace(rest[n:]), []byte(":")))
		if n = valueEnd(rest); n <= 0 {
			return false
		}
		if !visit(key, rest[:n:n]) {
			return false
		}
		rest = rest[n:]
	}
}

func memberKey(quoted []byte) (key string, ok bool) {
	if bytes.IndexByte(quoted, '\\') < 0 && len(quoted) >= 2 {
		return string(quoted[1 : len(quoted)-1]), true
	}
	return key, json.Unmarshal(quoted, &key) == nil
}

func trimSpace(text []byte) []byte { return bytes.TrimLeft(text, " \t\r\n") }

// valueEnd is the length of the value that text begins with, which is valid; -1 if it is nested too deep.
func valueEnd(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			if i += stringEnd(text[i:]) - 1; depth == 0 {
				return i + 1
			}
		case '{', '[':
			if depth++; depth >= jsonDepthMax {
				return -1
			}
		case '}', ']':
			if depth == 0 { // The end of what encloses a number, true, false or null.
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ':', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return len(text)
}

// stringEnd is the length of the string, quotes included, that text begins with.
func stringEnd(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}
