package client_test

import (
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/client/internal/model"
	"github.com/sluice-im/sluice/codec"
)

// fate is what the gateway does with one command of a client.
type fate int

const (
	handle       fate = iota
	cutBefore         // the connection breaks before the command is carried out
	cutAfter          // … after, and the answer is lost
	answerRetry       // RETRY, and not carried out
	swallow           // carried out, never answered
	ignore            // nothing happens, nothing is answered
	kick              // the connection is kicked instead
	reconnectNow      // RECONNECT, then carried out
)

// gateway is a gateway and its logic tier in this process, on real sockets or on whatever serve is given.
type gateway struct {
	t         *testing.T
	websocket bool
	url       string
	serving   sync.WaitGroup

	mu        sync.Mutex
	server    *model.Server
	conns     map[*peer]struct{}
	lastConn  uint64
	logins    []*clientv1.Login
	heartbeat time.Duration
	// decide is asked for every command but LOGIN; nil = handle.
	decide func(uid string, cmd *clientv1.Command) fate
}

// peer is one connection.
type peer struct {
	g      *gateway
	nc     net.Conn
	stream codec.Stream
	uid    string
	device string
	id     uint64
	// routed is uid once pushes may come; guarded by the gateway's mu.
	routed string
	// writing keeps frames whole.
	writing sync.Mutex
}

func newGateway(t *testing.T, websocket bool) *gateway {
	g := &gateway{
		t: t, websocket: websocket, server: model.New(), conns: map[*peer]struct{}{}, heartbeat: 30 * time.Second,
	}
	t.Cleanup(func() {
		g.cut()
		g.serving.Wait()
	})
	return g
}

// listen serves real sockets; scheme is ws, wss, tcp or tls.
func listen(t *testing.T, scheme string) *gateway {
	g := newGateway(t, scheme == "ws" || scheme == "wss")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.url = scheme + "://" + l.Addr().String() + "/ws"
	if scheme == "wss" || scheme == "tls" {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{testCertificate(t)}})
	}
	t.Cleanup(func() { _ = l.Close() })
	g.serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			g.serve(nc)
		}
	})
	return g
}

// serve begins a connection.
func (g *gateway) serve(nc net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lastConn++
	p := &peer{g: g, nc: nc, id: g.lastConn}
	g.conns[p] = struct{}{}
	g.serving.Go(func() {
		p.run()
		_ = nc.Close()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, p)
	})
}

// cut breaks all connections.
func (g *gateway) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.conns {
		_ = p.nc.Close()
	}
}

func (g *gateway) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// run reads frames until the end.
func (p *peer) run() {
	protocol := codec.TCP
	var buf []byte
	if p.g.websocket {
		protocol = codec.WebSocket
		var ok bool
		if buf, ok = p.upgrade(); !ok {
			return
		}
	}
	p.stream = codec.NewStream(protocol)
	if p.uid != "" {
		p.loggedIn(&clientv1.Login{})
	}
	limits := codec.Limits{FrameBytes: 64 << 10, Fragments: 10}
	chunk := make([]byte, 4096)
	for {
		f, consumed, err := p.stream.Next(buf, &limits)
		if err != nil {
			p.g.t.Errorf("the client's framing: %v", err)
			return
		}
		if f.Kind == codec.KindCommand && !p.command(f.Payload) {
			return
		}
		if f.Kind == codec.KindClose {
			p.write(p.stream.AppendClose(nil, f.Code, ""))
			return
		}
		buf = buf[consumed:]
		if consumed > 0 {
			continue
		}
		n, err := p.nc.Read(chunk)
		if err != nil {
			return
		}
		buf = append(buf, chunk[:n]...)
	}
}

// upgrade answers the HTTP request; a bearer token is a login.
func (p *peer) upgrade() (rest []byte, ok bool) {
	var buf []byte
	chunk := make([]byte, 4096)
	for {
		u, consumed, err := codec.ParseUpgrade(buf, &codec.UpgradeOptions{Path: "/ws"})
		if err == nil && u.Token != "" {
			if r := p.authenticate(u.Token); r != reason.None {
				err = &codec.UpgradeError{Reason: r}
			}
		}
		if err != nil {
			p.write(codec.AppendUpgradeError(nil, err))
			return nil, false
		}
		if consumed > 0 {
			p.device = u.DeviceID
			p.write(codec.AppendUpgradeResponse(nil, &u))
			return buf[consumed:], true
		}
		n, err := p.nc.Read(chunk)
		if err != nil {
			return nil, false
		}
		buf = append(buf, chunk[:n]...)
	}
}

// authenticate knows the tokens "token-<uid>", with anything behind a slash, and "expired".
func (p *peer) authenticate(token string) reason.Reason {
	if token == "expired" {
		return reason.TokenExpired
	}
	uid, ok := strings.CutPrefix(token, "token-")
	if !ok {
		return reason.BadToken
	}
	p.uid, _, _ = strings.Cut(uid, "/")
	return reason.None
}

func (p *peer) loggedIn(login *clientv1.Login) {
	if p.device == "" {
		p.device = login.DeviceId
	}
	if p.device == "" {
		p.device = "made-by-gateway"
	}
	p.g.mu.Lock()
	p.g.logins = append(p.g.logins, login)
	p.routed = p.uid
	heartbeat := p.g.heartbeat
	p.g.mu.Unlock()
	p.send(clientv1.CommandType_LOGIN_REPLY, 0, &clientv1.LoginReply{
		Uid: p.uid, ConnId: p.id, DeviceId: p.device, HeartbeatIntervalMs: uint32(heartbeat.Milliseconds()),
		Limits: &clientv1.Limits{FrameBytes: 64 << 10, Window: 16},
	})
}

// command handles one; false ends the connection.
func (p *peer) command(payload []byte) bool {
	cmd := &clientv1.Command{}
	if err := cmd.UnmarshalVT(payload); err != nil {
		p.g.t.Errorf("the client's command: %v", err)
		return false
	}
	if cmd.Type == clientv1.CommandType_LOGIN {
		return p.login(cmd)
	}
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	what := handle
	if p.g.decide != nil {
		what = p.g.decide(p.uid, cmd)
	}
	switch what {
	case cutBefore:
		return false
	case ignore:
		return true
	case kick:
		p.send(clientv1.CommandType_KICK, 4501, &clientv1.Kick{ConnId: p.id, Reason: "displaced", ByDevice: "other"})
		return false
	case reconnectNow:
		p.send(clientv1.CommandType_RECONNECT, 0, &clientv1.Reconnect{Reason: "draining"})
	case answerRetry:
		p.retry(cmd)
		return true
	}
	answer, others := p.g.server.Handle(p.uid, cmd.Type, cmd.Data)
	for _, c := range others {
		p.g.push(c)
	}
	if what == cutAfter {
		return false
	}
	if answer != nil && what != swallow {
		p.send(answer.Type, 0, answer.Message)
	}
	return cmd.Type != clientv1.CommandType_LOGOUT
}

func (p *peer) login(cmd *clientv1.Command) bool {
	login := &clientv1.Login{}
	if err := login.UnmarshalVT(cmd.Data); err != nil {
		p.g.t.Errorf("the client's LOGIN: %v", err)
		return false
	}
	if r := p.authenticate(login.Token); r != reason.None {
		p.send(clientv1.CommandType_ERROR, int32(r.Code()), &clientv1.Error{Reason: r.String(), Command: cmd.Type})
		return false
	}
	p.loggedIn(login)
	return true
}

func (p *peer) retry(cmd *clientv1.Command) {
	up := &clientv1.MessageUp{}
	if err := up.UnmarshalVT(cmd.Data); err != nil {
		p.g.t.Errorf("the client's MESSAGEUP: %v", err)
		return
	}
	p.send(clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{
		Uuid: up.Uuid, Status: clientv1.MessageAckStatus_ACK_RETRY, Reason: "no_backend", RetryAfterMs: 1,
	})
}

// push runs under mu: to all connections of a user.
func (g *gateway) push(c model.Command) {
	for _, p := range slices.SortedFunc(maps.Keys(g.conns), func(a, b *peer) int { return int(a.id) - int(b.id) }) {
		if p.routed == c.UID {
			p.send(c.Type, 0, c.Message)
		}
	}
}

func (p *peer) send(t clientv1.CommandType, code int32, m codec.Message) {
	frame, err := p.stream.Append(nil, codec.AppendCommand(nil, t, code, m))
	if err != nil {
		p.g.t.Errorf("frame %v: %v", t, err)
		return
	}
	p.write(frame)
}

// write does not wait for ever for a client that does not read: the connection is then broken, as with any gateway.
func (p *peer) write(frame []byte) {
	p.writing.Lock()
	defer p.writing.Unlock()
	_ = p.nc.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, err := p.nc.Write(frame); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
		_ = p.nc.Close()
	}
}

// count returns how many commands of a type decide has let pass; it is a decide that only counts.
type counter struct {
	mu sync.Mutex
	n  map[clientv1.CommandType]int
}

func (c *counter) decide(_ string, cmd *clientv1.Command) fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[clientv1.CommandType]int{}
	}
	c.n[cmd.Type]++
	return handle
}

func (c *counter) of(t clientv1.CommandType) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[t]
}
