package main

import (
	"bytes"
	"compress/flate"
	"io"
)

func deflate(p []byte) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, 6)
	_, _ = w.Write(p) // into memory
	_ = w.Flush()
	return b.Bytes()[:b.Len()-4]
}

func inflate(p, dict []byte) ([]byte, error) {
	r := flate.NewReaderDict(io.MultiReader(bytes.NewReader(p), bytes.NewReader([]byte{0, 0, 255, 255, 1, 0, 0, 255, 255})), dict)
	return io.ReadAll(r)
}
