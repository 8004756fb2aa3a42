package codec

import "encoding/binary"

// tcpHeaderBytes is the length in front of a TCP frame.
const tcpHeaderBytes = 4

// nextTCP cuts one frame. The length is judged as soon as it is there, and nothing is ever allocated by it.
func nextTCP(buf []byte, lim *Limits) (Frame, int, Error) {
	if len(buf) < tcpHeaderBytes {
		return Frame{}, 0, 0
	}
	length := binary.BigEndian.Uint32(buf)
	if length == 0 {
		return Frame{}, 0, ErrZeroLength
	}
	if int64(length) > int64(lim.frameBytes()) {
		return Frame{}, 0, ErrFrameTooBig
	}
	end := tcpHeaderBytes + int(length)
	if len(buf) < end {
		return Frame{}, 0, 0
	}
	return Frame{Kind: KindCommand, Payload: buf[tcpHeaderBytes:end:end]}, end, 0
}
