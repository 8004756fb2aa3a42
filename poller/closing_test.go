package poller

import (
	"io"
	"testing"
	"time"
)

// farewell is a handler that hangs up on the first bytes, and tells when the connection has ended.
type farewell struct{ ended chan time.Time }

func (h *farewell) Open(Conn, Info, time.Duration) Verdict { return Rearm }
func (h *farewell) Data(c Conn, in Input) (int, Verdict) {
	c.Queue([]byte("last words"))
	return len(in.Bytes), Hangup
}
func (h *farewell) Timeout(Conn, time.Duration) Verdict { return Rearm }
func (h *farewell) Closed(ID, Cause)                    { h.ended <- time.Now() }
func (h *farewell) PassEnd(int)                         {}

// TestFloodDoesNotCutTheLinger: a client that never stops sending has all of the linger to take the last words in,
// although no more than discardBytesMax of its flood is read. A close with unread input would be RST at once.
func TestFloodDoesNotCutTheLinger(t *testing.T) {
	const linger = 300 * time.Millisecond
	h := &farewell{ended: make(chan time.Time, 1)}
	_, dial := listening(t, Config{Loops: 1, Linger: linger}, h)
	client := dial()
	begun := time.Now()
	flooded := make(chan int)
	go func() {
		sent := 0
		for p := make([]byte, 64<<10); ; {
			n, err := client.Write(p)
			if sent += n; err != nil {
				flooded <- sent
				return
			}
		}
	}()
	if took := (<-h.ended).Sub(begun); took < linger {
		t.Errorf("closed after %v, within the linger of %v", took, linger)
	}
	if sent := <-flooded; sent <= discardBytesMax {
		t.Errorf("%d bytes are no flood", sent)
	}
	if got, _ := io.ReadAll(client); string(got) != "last words" {
		t.Errorf("read %q", got)
	}
}
