package store

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// HashOf is the hash of a message's receiver, type, content and body: what must be the same under one uuid. Lengths are
// part of it, so that nothing can move from one field to the next.
func HashOf(m *Message) uint64 {
	var d xxhash.Digest
	d.Reset()
	var n [8]byte
	part := func(s string) {
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = d.Write(n[:])
		_, _ = d.WriteString(s)
	}
	part(m.ReceiverID)
	binary.LittleEndian.PutUint64(n[:], uint64(m.Type))
	_, _ = d.Write(n[:])
	part(m.Content)
	binary.LittleEndian.PutUint64(n[:], uint64(len(m.Body)))
	_, _ = d.Write(n[:])
	_, _ = d.Write(m.Body)
	return d.Sum64()
}
