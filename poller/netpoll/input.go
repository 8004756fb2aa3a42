package netpoll

import (
	"context"
	"runtime"

	cloudwego "github.com/cloudwego/netpoll"

	"github.com/sluice-im/sluice/poller"
)

// The way of input: netpoll reads → request → arrived → the lane takes it (stage.go, then lease.go). When netpoll lets go →
// released → the lane's loosened.

const (
	// burstBytesMax is what a connection whose handler may run can have waiting above Config.LeftoverBytes: its lane may be
	// busy with others. A handler that is slower than its client for long meets it too, since netpoll cannot be stopped.
	burstBytesMax = 1 << 20
	// yieldBytes is the waiting input of one connection at which the poller gives the lanes a chance to run before it
	// reads on.
	yieldBytes = 64 << 10
	// discardBytesMax is what a hung-up peer may still send before the close stops waiting for its FIN.
	discardBytesMax = 1 << 20
)

// detacher is what netpoll's connections can do beyond their interface.
type detacher interface{ Detach() error }

// attach gives the descriptor to netpoll, whose callbacks may run before it returns. The lane calls it once: under the
// lease of Open, or when a stage begins.
func (c *conn) attach() {
	np, err := cloudwego.NewFDConnection(int(c.fd))
	c.mu.Lock()
	if err != nil {
		// netpoll has closed the descriptor already.
		c.fd = -1
		c.flags |= flagLoose
		c.end(poller.CauseInternal, flagCut)
		c.mu.Unlock()
		return
	}
	c.flags |= flagAttached
	c.mu.Unlock()
	// Neither fails. The order matters: what comes before SetOnRequest is given to it, and nothing is given up before the
	// close callback is known.
	_ = np.AddCloseCallback(c.released)
	_ = np.SetOnRequest(c.request)
	if !np.IsActive() {
		// The peer was gone before there was an OnRequest; netpoll then leaves the end to its user.
		_ = np.Close()
	}
}

// request moves what netpoll has read to the connection. It runs on a poller of netpoll and must leave nothing, or
// netpoll would call it again at once.
func (c *conn) request(_ context.Context, np cloudwego.Connection) error {
	if c.drain(np) > yieldBytes {
		runtime.Gosched()
	}
	return nil
}

// drain empties netpoll's buffer and returns how much input waits for the lane now.
func (c *conn) drain(np cloudwego.Connection) int {
	r := np.Reader()
	p, err := r.Next(r.Len())
	if err != nil || len(p) == 0 {
		return 0
	}
	waiting := c.arrived(p)
	_ = r.Release() // only returns buffers
	return waiting
}

// arrived takes in new input.
func (c *conn) arrived(p []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flags&flagEnded != 0 || c.state < stateStaging {
		if c.discarded += uint32(len(p)); c.discarded >= discardBytesMax && c.state == stateClosing {
			c.enlist()
		}
		return 0
	}
	if c.stored()+len(p) > c.storable() {
		c.end(poller.CauseInputOverflow, flagHangup)
		return 0
	}
	c.in = c.lane.engine.bufs.Grown(c.in, len(p))
	c.in.Add(p)
	switch {
	case c.state == stateStaging && c.stage.shaking:
		c.stage.layer.Signal()
	case c.state == stateStaging, c.state == stateArmed && c.flowing():
		c.enlist()
	}
	return c.in.Len()
}

// released hears that netpoll lets go of the connection: the peer has finished sending or reset, or the lane has shut the
// socket down. netpoll has read all there was. It runs on a goroutine of netpoll, once.
func (c *conn) released(np cloudwego.Connection) error {
	c.drain(np)
	_ = np.(detacher).Detach() // within its own end, this only keeps netpoll from closing the descriptor
	c.mu.Lock()
	c.flags |= flagLoose
	c.enlist()
	c.mu.Unlock()
	return nil
}
