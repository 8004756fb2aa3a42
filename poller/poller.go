// Package poller holds connections: sockets, epoll, the lease, the outbox and the timers. It knows nothing of
// protobuf or WebSocket; a Handler gives the bytes a meaning.
//
// The way of a byte: an event is a lease, one read fills the loop's own buffer, Handler.Data consumes what it can, and
// its Verdict ends the lease (re-arm, park or hang up). See ARCHITECTURE.md, "The lease".
package poller

import (
	"crypto/tls"
	"net"
	"net/netip"
	"time"
)

// ID names one connection of one engine: slot in the low 32 bits, generation of the slot above. 0 names none. A slot
// is smaller than Config.Connections, so that a handler can keep its own state in a slab beside the engine's.
type ID uint64

// Slot is the index of the connection in slabs that stand beside the engine's.
func (id ID) Slot() uint32 { return uint32(id) }

// Verdict ends a lease.
type Verdict uint8

const (
	// Rearm reads on when the kernel has bytes.
	Rearm Verdict = iota
	// Park reads nothing until Wake, the timer, or the outbox falling back to a quarter of its bound. A hang-up of the
	// peer is still seen.
	Park
	// Hangup writes what is queued, shuts down writing, reads on for at most Config.Linger, then closes.
	Hangup
)

// Input is what a lease found.
type Input struct {
	// Bytes not yet consumed: left-over first, then what was just read. The handler may change them in place; they are
	// the engine's again when Data returns.
	Bytes []byte
	// Now is the engine's monotonic clock, read once a pass.
	Now time.Duration
	// EOF says that the peer has finished sending. Rearm then means Hangup, since nothing more can come; Park still
	// waits, for answers that are on their way.
	EOF bool
}

// Handler gives the bytes a meaning. Open, Data and Timeout run under the connection's lease: never two at once for one
// connection. No method may block. A panic closes that one connection with CauseInternal.
//
// PassEnd runs on the loop after the leases of one pass, so that what they found can leave in one batch.
//
// Closed is the last call for a connection; it happens before Open of the next connection in the same slot.
type Handler interface {
	Open(c Conn, info Info, now time.Duration) Verdict
	Data(c Conn, in Input) (consumed int, v Verdict)
	Timeout(c Conn, now time.Duration) Verdict
	Closed(id ID, cause Cause)
	PassEnd(loop int)
}

// Conn is a connection under its lease; it must not be kept beyond the call.
type Conn interface {
	ID() ID
	// Loop is the index of the loop that owns the connection, below Config.Loops.
	Loop() int
	// Queue copies b behind what is queued; all of it leaves in one write when the lease ends.
	Queue(b []byte) Status
	// Queued is the number of bytes that the kernel has not taken yet.
	Queued() int
	// SetTimer arms the connection's only timer: Timeout runs at or soon after at (coarse: up to Config.Tick late). It
	// replaces an earlier setting; 0 disarms.
	SetTimer(at time.Duration)
}

// Conns reaches connections from any goroutine, without a lease. An ID whose connection is gone is answered
// StatusGone, never somebody else's connection.
type Conns interface {
	// Queue copies b behind what is queued and does not write yet. Every Queue must be followed by a Flush of the same
	// connection by the same goroutine, soon.
	Queue(id ID, b []byte) Status
	// Flush writes what is queued as far as the kernel takes it.
	Flush(id ID) Status
	// Wake gives a parked connection a lease: Data runs on what is left over. A Wake that meets a lease is remembered.
	Wake(id ID)
	// Close hangs up from outside: final is written behind what is queued. It reports false if the connection was gone
	// or already closing; the first cause wins.
	Close(id ID, final []byte) bool
	// Reset closes at once, without writing or lingering.
	Reset(id ID) bool
}

// Engine runs connections for one Handler.
type Engine interface {
	// Conns reaches the engine's connections from outside.
	Conns() Conns
	// Listen opens a listener and starts to accept; the address says which port 0 became. May be called before and
	// after other Listen calls, until Shutdown.
	Listen(l Listener) (net.Addr, error)
	// StopAccepting closes all listeners; connections go on.
	StopAccepting()
	// Shutdown closes what is left (CauseShutdown) and returns when every goroutine of the engine has ended.
	Shutdown()
	// Stats is a snapshot of the engine's counters.
	Stats() Stats
}

// Status is what became of queued bytes.
type Status uint8

const (
	// StatusWritten: everything queued so far is with the kernel.
	StatusWritten Status = iota
	// StatusQueued: within the bound, behind what is queued.
	StatusQueued
	// StatusOverflow: over Config.OutboxBytes; b was not taken and the connection is being closed (CauseOutboxFull).
	StatusOverflow
	// StatusGone: no such connection, or it is closing.
	StatusGone
)

// Cause is why a connection ended, as far as the engine knows.
type Cause uint8

const (
	// CauseHandler: the handler's Hangup, or Close or Reset from outside.
	CauseHandler Cause = iota
	// CausePeerClosed: FIN after everything was read.
	CausePeerClosed
	// CausePeerReset: RST or another error of the socket.
	CausePeerReset
	// CauseOutboxFull: more than Config.OutboxBytes queued.
	CauseOutboxFull
	// CauseWriteStalled: the kernel took nothing for Config.WriteTimeout.
	CauseWriteStalled
	// CauseInputOverflow: the handler left more unconsumed than Config.LeftoverBytes.
	CauseInputOverflow
	// CauseTLSFailed: the TLS handshake or a record failed, or the handshake took too long.
	CauseTLSFailed
	// CauseBadProxyHeader: the PROXY protocol header was bad, missing or late.
	CauseBadProxyHeader
	// CauseInternal: a panic in the handler.
	CauseInternal
	// CauseShutdown: Engine.Shutdown.
	CauseShutdown

	// Causes of refusal: the connection was accepted and closed at once, and Open never ran.

	// CauseConnectionLimit: Config.Connections are open.
	CauseConnectionLimit
	// CauseAcceptRate: over Config.Accept.PerSecond.
	CauseAcceptRate
	// CauseAddressLimit: over a limit per address.
	CauseAddressLimit

	// Causes is their number.
	Causes
)

// Info is what is known of a connection when it opens.
type Info struct {
	// Listener is Listener.Index of the listener that accepted it.
	Listener int
	// Remote is the peer's address, from the PROXY header where there was one.
	Remote netip.AddrPort
	// TLS is true when the bytes came through TLS.
	TLS bool
	// Accepted is when the engine took the connection from its listener, in the engine's time: what stands before the
	// handler (PROXY header, TLS handshake) came between it and the now of Open, which is never earlier. A deadline for
	// all that a client has to do before it is known counts from here. What the kernel's backlog added is not known.
	Accepted time.Duration
}

// ProxyMode says what a listener expects of the PROXY protocol.
type ProxyMode uint8

// The modes of the PROXY protocol.
const (
	ProxyOff ProxyMode = iota
	ProxyOptional
	ProxyStrict
)

// Listener is one address to accept on.
type Listener struct {
	// Index comes back as Info.Listener.
	Index int
	// Addr is host:port as for net.Listen; port 0 takes a free one.
	Addr string
	// TLS, when set, puts a TLS stage before the handler.
	TLS *tls.Config
	// Proxy is only looked at from addresses in TrustedProxies.
	Proxy ProxyMode
	// TrustedProxies speak for many: the limits per address count whom their PROXY header names, and never the proxies
	// themselves.
	TrustedProxies []netip.Prefix
}

// Accept limits new connections. 0 = no limit.
type Accept struct {
	PerSecond          int
	Burst              int
	PerAddrPerSecond   int
	PerAddrConnections int
}

// Config is fixed when an engine is made. The zero value of a field takes the default beside it.
type Config struct {
	// Loops is the number of loops. 0 = one a core.
	Loops int
	// Connections bounds the slots; it is clamped to the descriptor limit less a reserve. 0 = 1,000,000.
	Connections int
	// ReadBytes bounds one read: fairness between the connections of a loop. 0 = 16 KiB.
	ReadBytes int
	// LeftoverBytes bounds what a handler may leave unconsumed; at least the largest frame. 0 = 128 KiB.
	LeftoverBytes int
	// OutboxBytes bounds what is queued for one connection. 0 = 256 KiB.
	OutboxBytes int
	// SendBuffer is SO_SNDBUF, bytes. 0 = 64 KiB.
	SendBuffer int
	// WriteTimeout closes a connection whose kernel buffer took nothing for so long. 0 = 10 s.
	WriteTimeout time.Duration
	// HandshakeTimeout bounds the PROXY header and the TLS handshake together, from accept on. 0 = 5 s.
	HandshakeTimeout time.Duration
	// Linger is how long a hung-up connection is read on so that unread input does not turn the close into RST.
	// 0 = 500 ms.
	Linger time.Duration
	// Tick is the grain of the timers. 0 = 50 ms.
	Tick   time.Duration
	Accept Accept
	// Reserve is the number of descriptors kept free for everything that is not a client. 0 = 256.
	Reserve int
}

// Stats are counters since the start, but for the gauges, which say so.
type Stats struct {
	// Open is a gauge: connections between Open and Closed, per Listener.Index.
	Open []int64
	// Opened per Listener.Index.
	Opened []uint64
	// Refused counts accepted connections that were closed before Open, by cause.
	Refused [Causes]uint64
	// AcceptPaused counts pauses of accepting for want of descriptors.
	AcceptPaused uint64
	// OutboxBytes is a gauge: bytes queued above the kernel, all connections.
	OutboxBytes int64
	// Parked is a gauge.
	Parked int64
	// Passes and Events count the loops' epoll_wait returns and the events they brought.
	Passes, Events uint64
	// PassNanos is the time spent outside epoll_wait.
	PassNanos uint64
	// Panics counts handler calls that panicked.
	Panics uint64
	// Descriptors is the limit on connections after clamping.
	Descriptors int
}
