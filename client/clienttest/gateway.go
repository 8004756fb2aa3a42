// Package clienttest is a gateway with its logic tier inside a test's own process, over real sockets or over whatever it
// is given, that can be told to treat its clients badly. Applications of the SDK test with it, and so does the SDK.
package clienttest

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

// Fate is what the gateway does with one command of a client.
type Fate int

// The fates. All but CutBefore, Retry, Ignore and Kick carry the command out.
const (
	// Handle answers as a gateway should.
	Handle Fate = iota
	// CutBefore breaks the connection before the command is carried out.
	CutBefore
	// CutAfter carries it out and breaks the connection before the answer.
	CutAfter
	// Retry answers a message with RETRY, without carrying it out.
	Retry
	// Ignore does nothing and says nothing.
	Ignore
	// Kick ends the connection with KICK.
	Kick
	// Reconnect sends RECONNECT before the answer.
	Reconnect
)

// DeviceMade is the device id for clients that bring none.
const DeviceMade = "made-by-gateway"

// Gateway is a gateway and its logic tier. Tokens are "token-<uid>", or "expired".
type Gateway struct {
	// URL is for client.Config. Fixed after Listen or New, as is Heartbeat's default of 30 s.
	URL string

	t         testing.TB
	websocket bool
	serving   sync.WaitGroup

	mu        sync.Mutex
	server    *model.Server
	conns     map[*peer]struct{}
	lastConn  uint64
	logins    []*clientv1.Login
	heartbeat time.Duration
	decide    func(uid string, cmd *clientv1.Command) Fate
}

// peer is one connection.
type peer struct {
	g      *Gateway
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

// New makes a gateway that is given its connections by Serve; scheme is ws or tcp. It ends with the test.
func New(t testing.TB, scheme string) *Gateway {
	g := &Gateway{
		URL: scheme + "://gateway.test:1/ws", t: t, websocket: scheme == "ws" || scheme == "wss",
		server: model.New(), conns: map[*peer]struct{}{}, heartbeat: 30 * time.Second,
	}
	t.Cleanup(func() {
		g.Cut()
		g.serving.Wait()
	})
	return g
}

// Listen makes a gateway on a free loopback port; scheme is ws, wss, tcp or tls. The certificate is for wss and tls.
func Listen(t testing.TB, scheme string, certificate ...tls.Certificate) *Gateway {
	g := New(t, scheme)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.URL = scheme + "://" + l.Addr().String() + "/ws"
	if scheme == "wss" || scheme == "tls" {
		l = tls.NewListener(l, &tls.Config{Certificates: certificate})
	}
	t.Cleanup(func() { _ = l.Close() })
	g.serving.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			g.Serve(nc)
		}
	})
	return g
}

// Serve begins a connection; nc is closed at its end.
func (g *Gateway) Serve(nc net.Conn) {
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

// Decide sets who says what becomes of every command but LOGIN; nil = Handle. decide is called by one connection at a
// time.
func (g *Gateway) Decide(decide func(uid string, cmd *clientv1.Command) Fate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.decide = decide
}

// SetHeartbeat sets the interval that later logins are told.
func (g *Gateway) SetHeartbeat(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heartbeat = d
}

// SetPage bounds the entries of a SYNC_REPLY and PULL_REPLY.
func (g *Gateway) SetPage(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.server.Page = n
}

// Stored is what the logic tier holds of a conversation.
func (g *Gateway) Stored(conv string) []*clientv1.MessageDown {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.server.Messages(conv))
}

// Logins are the LOGIN commands that were accepted, in order; one without data follows a login at the upgrade.
func (g *Gateway) Logins() []*clientv1.Login {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.logins)
}

// Cut breaks all connections.
func (g *Gateway) Cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.conns {
		_ = p.nc.Close()
	}
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
		p.device = DeviceMade
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
	what := Handle
	if p.g.decide != nil {
		what = p.g.decide(p.uid, cmd)
	}
	switch what {
	case CutBefore:
		return false
	case Ignore:
		return true
	case Kick:
		p.send(clientv1.CommandType_KICK, 4501, &clientv1.Kick{ConnId: p.id, Reason: "displaced", ByDevice: "other"})
		return false
	case Reconnect:
		p.send(clientv1.CommandType_RECONNECT, 0, &clientv1.Reconnect{Reason: "draining"})
	case Retry:
		p.retry(cmd)
		return true
	}
	answer, others := p.g.server.Handle(p.uid, cmd.Type, cmd.Data)
	for _, c := range others {
		p.g.push(c)
	}
	if what == CutAfter {
		return false
	}
	if answer != nil {
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
	if p.uid != "" && len(cmd.Data) == 0 {
		p.loggedIn(login)
		return true
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
func (g *Gateway) push(c model.Command) {
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
