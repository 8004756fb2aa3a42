package gateway

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
)

// sends is what a client does.
func (k *talk) sends(c *talker, word string, args []string) (bool, error) {
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	send := func(t clientv1.CommandType, m codec.Message) (bool, error) {
		framed, err := codec.AppendClientFrame(c.proto, nil, codec.AppendCommand(nil, t, 0, m), [4]byte{1, 2, 3, 4})
		c.c.send(framed)
		return true, err
	}
	// TOKEN may be jwt:UID:TTL, which is signed with the configured secret.
	if uid, ttl, ok := strings.Cut(strings.TrimPrefix(arg(0), "jwt:"), ":"); ok && strings.HasPrefix(arg(0), "jwt:") {
		d, err := time.ParseDuration(ttl)
		if err != nil {
			return true, err
		}
		args[0] = sign(k.t, jwt.SigningMethodHS256, []byte(k.cfg.Auth.JWT.Secret), jwt.MapClaims{"sub": uid, "exp": time.Now().Add(d).Unix()})
	}
	switch word {
	case "upgrade":
		c.c.send(upgradeRequest(c.proto, args))
		return true, nil
	case "login":
		return send(clientv1.CommandType_LOGIN, &clientv1.Login{Token: arg(0), DeviceId: arg(1), SessionId: arg(2), Platform: "web"})
	case "login-again":
		return send(clientv1.CommandType_LOGIN, nil)
	case "refresh":
		return send(clientv1.CommandType_TOKEN_REFRESH, &clientv1.TokenRefresh{Token: arg(0)})
	case "up":
		return send(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: arg(0), ReceiverId: arg(1), Content: strings.Join(args[2:], " ")})
	case "big":
		n, err := strconv.Atoi(arg(2))
		_, _ = send(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: arg(0), ReceiverId: arg(1), Body: make([]byte, n)})
		return true, err
	case "heartbeat":
		return send(clientv1.CommandType_HEARTBEAT, nil)
	case "logout":
		return send(clientv1.CommandType_LOGOUT, nil)
	case "delivered":
		return send(clientv1.CommandType_DELIVERED, &clientv1.Delivered{ConvId: arg(0), Seq: 7})
	case "read":
		return send(clientv1.CommandType_READ, &clientv1.Read{ConvId: arg(0), Seq: 7})
	case "sync":
		return send(clientv1.CommandType_SYNC, &clientv1.Sync{SinceMs: 1})
	case "pull":
		return send(clientv1.CommandType_PULL, &clientv1.Pull{ConvId: arg(0), AfterSeq: 1})
	case "custom":
		n, err := strconv.Atoi(arg(0))
		_, _ = send(clientv1.CommandType(n), nil)
		return true, err
	case "ping":
		c.c.send(codec.AppendClientPing(c.proto, nil, []byte(arg(0)), [4]byte{1, 2, 3, 4}))
		return true, nil
	case "raw":
		b, err := hex.DecodeString(strings.Join(args, ""))
		c.c.send(b)
		return true, err
	case "text":
		c.c.send([]byte(strings.Join(args, " ")))
		return true, nil
	}
	return k.line(c, word), nil
}

// line is what happens to a client's line.
func (k *talk) line(c *talker, word string) bool {
	switch word {
	case "fin":
		c.c.close()
	case "reset":
		c.c.end(poller.CausePeerReset)
	case "stall":
		k.engine.mu.Lock()
		c.c.stalled = true
		k.engine.mu.Unlock()
	case "unstall":
		k.engine.mu.Lock()
		c.c.stalled = false
		c.c.flush()
		k.engine.mu.Unlock()
		k.engine.Wake(c.c.id) // as an engine does when the outbox falls back to a quarter
	default:
		return false
	}
	return true
}

func upgradeRequest(proto codec.Protocol, args []string) []byte {
	var b bytes.Buffer
	query, headers := "", ""
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "bearer":
			headers += "Authorization: Bearer " + value + "\r\n"
		case "origin":
			headers += "Origin: " + value + "\r\n"
		case "sub":
			headers += "Sec-WebSocket-Protocol: sluice.v1.pb, bearer." + value + "\r\n"
		case "deflate":
			headers += "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=" + value + "\r\n"
		case "forwarded":
			headers += "X-Forwarded-For: " + value + "\r\n"
		case "path":
		default:
			query += "&" + a
		}
	}
	if proto == codec.WebSocketJSON {
		headers += "Sec-WebSocket-Protocol: sluice.v1.json\r\n"
	}
	fmt.Fprintf(&b, "GET /ws?%s HTTP/1.1\r\nHost: gw\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n", strings.TrimPrefix(query, "&"), headers)
	return b.Bytes()
}

// checks is what a client has seen.
func (k *talk) checks(c *talker, word string, args []string) error {
	c.read()
	switch word {
	case "got":
		want := strings.Join(args, " ")
		if len(c.items) == 0 {
			return fmt.Errorf("nothing has come")
		}
		got := c.items[0]
		c.items = c.items[1:]
		if got != want {
			return fmt.Errorf("%s has come", got)
		}
	case "quiet":
		if len(c.items) > 0 {
			return fmt.Errorf("%v have come", c.items)
		}
	case "closed":
		if over, _ := c.c.over(); !over {
			return fmt.Errorf("it is open")
		}
		if got := k.log.reason(uint64(c.c.id)); got != args[0] {
			return fmt.Errorf("closed as %q", got)
		}
	case "stays":
		if over, _ := c.c.over(); over {
			return fmt.Errorf("closed as %q", k.log.reason(uint64(c.c.id)))
		}
	case "parked", "reading":
		p := k.g.peers.locked(c.c.id)
		if p == nil {
			return fmt.Errorf("it is gone")
		}
		defer p.mu.Unlock()
		got := []string{}
		for i, name := range holdNames {
			if p.parked && p.session.held&(1<<i) != 0 {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != strings.Join(args, " ") {
			return fmt.Errorf("parked for %v", got)
		}
	default:
		return fmt.Errorf("no such word")
	}
	return nil
}

// read takes apart what has come.
func (c *talker) read() {
	c.buf = append(c.buf, c.c.received()...)
	if c.http {
		head, rest, ok := bytes.Cut(c.buf, []byte("\r\n\r\n"))
		if !ok {
			return
		}
		status := strings.Fields(string(head))[1]
		item := "HTTP " + status
		if status != "101" {
			item += " " + strings.TrimSpace(strings.SplitN(string(rest), ":", 2)[0])
			rest = nil
		}
		c.items, c.buf, c.http = append(c.items, item), rest, false
	}
	for {
		f, n, err := c.stream.Next(c.buf, &codec.Limits{FrameBytes: 1 << 20, Fragments: 16})
		c.buf = c.buf[n:]
		switch {
		case err != nil:
			c.items = append(c.items, err.Error())
			return
		case f.Kind == codec.KindNone:
			return
		case f.Kind == codec.KindPong:
			c.items = append(c.items, "PONG "+string(f.Payload))
		case f.Kind == codec.KindClose:
			c.items = append(c.items, strings.TrimSpace(fmt.Sprintf("CLOSE %d %s", f.Code, f.Payload)))
		default:
			c.items = append(c.items, describe(f.Payload))
		}
	}
}

// describe is a command in the words of the conversations.
func describe(command []byte) string {
	h, err := codec.Scan(command)
	if err != nil {
		return err.Error()
	}
	words := []string{h.Type.String()}
	add := func(w ...string) {
		for _, s := range w {
			if s != "" {
				words = append(words, s)
			}
		}
	}
	ms := func(n uint32) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("%dms", n)
	}
	switch h.Type {
	case clientv1.CommandType_MESSAGEACK:
		var m clientv1.MessageAck
		_ = m.UnmarshalVT(h.Data)
		add(m.Uuid, m.Status.String(), m.Reason, ms(m.RetryAfterMs))
	case clientv1.CommandType_ERROR:
		var m clientv1.Error
		_ = m.UnmarshalVT(h.Data)
		if m.Command != 0 {
			add(m.Command.String())
		}
		add(m.ConvId, m.Reason, ms(m.RetryAfterMs))
		if h.Code != 0 {
			add(fmt.Sprint(h.Code))
		}
	case clientv1.CommandType_LOGIN_REPLY:
		var m clientv1.LoginReply
		_ = m.UnmarshalVT(h.Data)
		device := m.DeviceId
		if strings.HasPrefix(device, "auto-") {
			device = "auto"
		}
		add(m.Uid, device, fmt.Sprint(m.Limits.Window))
	case clientv1.CommandType_KICK:
		var m clientv1.Kick
		_ = m.UnmarshalVT(h.Data)
		add(m.Reason, m.ByDevice, fmt.Sprint(h.Code))
	case clientv1.CommandType_MESSAGEDOWN:
		var m clientv1.MessageDown
		_ = m.UnmarshalVT(h.Data)
		add(m.MsgId)
	case clientv1.CommandType_RESYNC:
		var m clientv1.Resync
		_ = m.UnmarshalVT(h.Data)
		add(m.Reason)
	}
	return strings.Join(words, " ")
}
