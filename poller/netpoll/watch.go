package netpoll

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller"
)

// watchEventsMax bounds what one look at the watch's epoll instance brings.
const watchEventsMax = 128

const hangupEvents = unix.EPOLLHUP | unix.EPOLLERR

// disarmed is the mask of a descriptor whose next event the watch will not report: ONESHOT has fired, or it was never
// asked.
const disarmed = 1 << 31

// watch reports what netpoll does not: that a connection whose outbox is not empty may be written to, and that a
// connection that netpoll has let go of was reset. Its epoll instance sits in the runtime's own poller, so that waiting
// costs no thread.
type watch struct {
	engine *engine
	file   *os.File
	epfd   int
	done   sync.WaitGroup
}

func newWatch(e *engine) (*watch, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("netpoll: epoll_create1: %w", err)
	}
	// Non-blocking is what makes os.NewFile use the runtime's poller.
	if err := unix.SetNonblock(epfd, true); err != nil {
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("netpoll: epoll instance: %w", err)
	}
	w := &watch{engine: e, file: os.NewFile(uintptr(epfd), "epoll"), epfd: epfd}
	rc, err := w.file.SyscallConn()
	if err != nil {
		_ = w.file.Close()
		return nil, fmt.Errorf("netpoll: epoll instance: %w", err)
	}
	w.done.Go(func() { // ended by stop
		events := make([]unix.EpollEvent, watchEventsMax)
		_ = rc.Read(func(uintptr) bool { // ends with an error when stop closes the file
			w.look(events)
			return false
		})
	})
	return w, nil
}

// stop ends the watch; no connection uses it any more.
func (w *watch) stop() {
	_ = w.file.Close()
	w.done.Wait()
}

// look handles all events there are: the runtime's poller, edge-triggered, reports only new ones.
func (w *watch) look(events []unix.EpollEvent) {
	for {
		n, err := unix.EpollWait(w.epfd, events, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			w.engine.log.Error("netpoll: epoll_wait failed", "error", err)
			return
		}
		for i := range events[:n] {
			w.event(&events[i])
		}
		if n < len(events) {
			return
		}
	}
}

// event handles one event. The kernel has disarmed the descriptor.
func (w *watch) event(ev *unix.EpollEvent) {
	c := w.engine.lookup(poller.ID(uint32(ev.Fd))|poller.ID(uint32(ev.Pad))<<32, stateStaging)
	if c == nil {
		return
	}
	defer c.mu.Unlock()
	c.mask = disarmed
	if c.flags&flagCut != 0 {
		return
	}
	if ev.Events&unix.EPOLLOUT != 0 {
		c.flags &^= flagBlocked
		c.flush()
	}
	if ev.Events&hangupEvents != 0 && c.flags&flagLoose != 0 {
		c.gone()
	}
	c.watch()
}

// watch asks for what the connection waits for: room for writing, or, once netpoll has let go, a hang-up, which epoll
// always reports. c.mu is held.
func (c *conn) watch() {
	want := uint32(unix.EPOLLONESHOT)
	if c.flags&flagBlocked != 0 {
		want |= unix.EPOLLOUT
	}
	if want == c.mask || want == unix.EPOLLONESHOT && !c.eof || c.flags&flagCut != 0 {
		return
	}
	op := unix.EPOLL_CTL_MOD
	if c.flags&flagWatched == 0 {
		op = unix.EPOLL_CTL_ADD
	}
	w := c.lane.engine.watch
	ev := unix.EpollEvent{Events: want, Fd: int32(c.slot), Pad: int32(c.gen)}
	if err := unix.EpollCtl(w.epfd, op, int(c.fd), &ev); err != nil {
		w.engine.log.Error("netpoll: epoll_ctl failed", "op", op, "error", err)
		c.end(poller.CauseInternal, flagCut)
		return
	}
	c.mask = want
	c.flags |= flagWatched
}

// forget takes a descriptor out, before it is closed.
func (w *watch) forget(fd int) {
	_ = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, fd, nil)
}
