package gateway

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateclient"
)

// asksBackend is for tests of auth mode backend in which no answer may be too late.
func asksBackend(c *Config, d *Deps) {
	patient(c, d)
	c.Auth = Auth{Mode: authBackend, Backend: AuthBackend{Timeout: deadline, Calls: 16}}
	c.Limits.Handshake.Timeout = 2 * deadline
}

// decide is a logic tier's Connect for tokens like "alice", "alice@tablet" and "no:why".
func decide(_ context.Context, in *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
	if in.GetToken() == "" {
		return &statev1.ConnectResponse{}, nil // the announcement of mode unary: it was decided before
	}
	if why, no := strings.CutPrefix(in.GetToken(), "no:"); no {
		return &statev1.ConnectResponse{Refused: true, Reason: why}, nil
	}
	uid, device, _ := strings.Cut(in.GetToken(), "@")
	return &statev1.ConnectResponse{Uid: uid, DeviceId: device}, nil
}

// tell is the ERROR with its detail, or whatever else comes.
func (w *wire) tell() string {
	w.t.Helper()
	for {
		f, n, err := w.stream.Next(w.buf, &codec.Limits{FrameBytes: 1 << 20, Fragments: 16})
		w.buf = w.buf[n:]
		switch {
		case err != nil:
			return err.Error()
		case f.Kind == codec.KindCommand:
			h, _ := codec.Scan(f.Payload)
			var m clientv1.Error
			if h.Type == clientv1.CommandType_ERROR && m.UnmarshalVT(h.Data) == nil {
				return "ERROR " + m.GetReason() + ": " + m.GetDetail()
			}
			return describe(f.Payload)
		case f.Kind == codec.KindNone:
			if err := w.more(); err != nil {
				return err.Error()
			}
		}
	}
}

func TestBackendDecides(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{stateclient.ModeStream, stateclient.ModeUnary} {
		t.Run(mode, func(t *testing.T) {
			r := run(t, startLogic(t, &logic{connect: decide}), func(c *Config, d *Deps) {
				asksBackend(c, d)
				c.Relay.Mode = mode
			})
			for _, c := range []struct{ token, device, want string }{
				{"alice", "phone", "LOGIN_REPLY alice phone 16"},
				{"bob@tablet", "phone", "LOGIN_REPLY bob tablet 16"}, // the logic tier names the device
				{"carol", "", "LOGIN_REPLY carol auto 16"},
				{"no:banned until Friday", "phone", "ERROR auth_refused: banned until Friday"},
				{"no:", "phone", "ERROR auth_refused: "},
				{"not a uid", "phone", "ERROR auth_unavailable: the logic tier names no valid user or device id"},
				{"dave@not a device", "phone", "ERROR auth_unavailable: the logic tier names no valid user or device id"},
				{"dave", "not a device", "ERROR wrong_identity: the device_id is not of the alphabet of ids"},
				{strings.Repeat("x", 9000), "phone", "ERROR bad_token: the token is too long"},
			} {
				w := r.connect(t, protocolTCP)
				w.command(clientv1.CommandType_LOGIN, &clientv1.Login{Token: c.token, DeviceId: c.device})
				if got := w.tell(); got != c.want {
					t.Errorf("%.30q: %q, want %q", c.token, got, c.want)
				}
			}
			w := r.connect(t, protocolWS)
			w.send(upgradeRequest(codec.WebSocket, []string{"bearer=no:nobody"}))
			answer, _ := io.ReadAll(w.conn)
			if !strings.HasPrefix(string(answer), "HTTP/1.1 403 ") || !strings.HasSuffix(string(answer), "auth_refused: no:nobody\n") && !strings.HasSuffix(string(answer), "auth_refused: nobody\n") {
				t.Errorf("the upgrade was answered %q", answer)
			}
			w = r.dial(t, protocolWS, "erin", "phone")
			w.command(clientv1.CommandType_TOKEN_REFRESH, &clientv1.TokenRefresh{Token: "erin"})
			w.want("TOKEN_REFRESH_REPLY")
			w.command(clientv1.CommandType_TOKEN_REFRESH, &clientv1.TokenRefresh{Token: "no:more"})
			w.want("ERROR TOKEN_REFRESH auth_refused")
			w.command(clientv1.CommandType_TOKEN_REFRESH, &clientv1.TokenRefresh{Token: "mallory"})
			w.want("ERROR wrong_identity 4503", "CLOSE 4503 wrong_identity", "EOF")
		})
	}
}

func TestBackendCannotDecide(t *testing.T) {
	login := func(r *running) string {
		w := r.connect(t, protocolTCP)
		w.command(clientv1.CommandType_LOGIN, loginAs("alice"))
		return w.tell()
	}
	r := run(t, startLogic(t, &logic{}), asksBackend)
	for range 2 {
		if got := login(r); got != "ERROR auth_unavailable: the logic tier cannot check logins: it does not implement Connect" {
			t.Errorf("without Connect: %q", got)
		}
	}
	r = run(t, startLogic(t, &logic{connect: func(ctx context.Context, _ *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}), func(c *Config, d *Deps) {
		asksBackend(c, d)
		c.Auth.Backend.Timeout = 50 * time.Millisecond
	})
	if got := login(r); got != "ERROR auth_unavailable: the logic tier does not answer" {
		t.Errorf("without an answer: %q", got)
	}
	eventually(t, "it is counted as refused", func() bool { return r.g.gauges.declined[reasonAuthUnavailable].Load() == 1 })
	w := r.connect(t, protocolWS)
	w.send(upgradeRequest(codec.WebSocket, []string{"bearer=alice"}))
	if status := w.http(); status != "503" {
		t.Errorf("the upgrade was answered %s", status)
	}
}

// TestBackendIsSlow: logins that the logic tier thinks about for long are as many as are allowed, and delay neither those
// who are logged in nor, while there are fewer, other logins.
func TestBackendIsSlow(t *testing.T) {
	t.Parallel()
	const calls = 4
	var asked, most atomic.Int64
	release := make(chan struct{})
	r := run(t, startLogic(t, &logic{connect: func(ctx context.Context, in *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
		n := asked.Add(1)
		defer asked.Add(-1)
		for now := most.Load(); n > now && !most.CompareAndSwap(now, n); now = most.Load() {
		}
		if strings.HasPrefix(in.GetToken(), "slow") {
			<-release
		}
		return decide(ctx, in)
	}}), func(c *Config, d *Deps) {
		asksBackend(c, d)
		c.Auth.Backend.Calls = calls
	})
	w := r.dial(t, protocolTCP, "alice", "phone")
	var slow []*wire
	slowLogin := func() {
		s := r.connect(t, []string{protocolTCP, protocolWS}[len(slow)%2])
		if len(slow)%2 == 0 {
			s.command(clientv1.CommandType_LOGIN, loginAs(fmt.Sprint("slow", len(slow))))
		} else {
			s.send(upgradeRequest(codec.WebSocket, []string{"bearer=slow" + fmt.Sprint(len(slow))}))
		}
		slow = append(slow, s)
	}
	for range calls - 1 {
		slowLogin()
	}
	eventually(t, "the slow ones are asked for", func() bool { return asked.Load() == calls-1 })
	for i := range 10 {
		r.dial(t, protocolTCP, fmt.Sprint("quick", i), "phone")
		w.up(fmt.Sprint("u", i), "bob")
		w.want(fmt.Sprintf("MESSAGEACK u%d ACK_OK", i))
	}
	for range 10 {
		slowLogin()
	}
	eventually(t, "as many as may be", func() bool { return asked.Load() == calls })
	w.up("last", "bob")
	w.want("MESSAGEACK last ACK_OK")
	close(release)
	for i, s := range slow {
		if i%2 == 1 {
			if status := s.http(); status != "101" {
				t.Errorf("slow login %d: %s", i, status)
			}
		} else if got := s.next(); !strings.HasPrefix(got, "LOGIN_REPLY slow") {
			t.Errorf("slow login %d: %s", i, got)
		}
	}
	if n := most.Load(); n > calls {
		t.Errorf("%d calls at once, at most %d are allowed", n, calls)
	}
}

// TestBackendLimits: what the logic tier allows one connection is that connection's own.
func TestBackendLimits(t *testing.T) {
	r := run(t, startLogic(t, &logic{connect: func(ctx context.Context, in *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
		res, err := decide(ctx, in)
		switch in.GetToken() {
		case "few":
			res.Limits = &statev1.ConnectLimits{MessagesPerSecond: 1, MessagesBurst: 2, InflightFrames: 4}
		case "many":
			res.Limits = &statev1.ConnectLimits{InflightFrames: 1 << 31, MessagesPerSecond: 1 << 31, MessagesBurst: 1 << 31, BytesPerSecond: 1 << 31, BytesBurst: 1 << 31}
		}
		return res, err
	}}), func(c *Config, d *Deps) {
		asksBackend(c, d)
		c.Limits.Uplink.Mode = modeReject
	})
	login := func(token, want string) *wire {
		w := r.connect(t, protocolTCP)
		w.command(clientv1.CommandType_LOGIN, loginAs(token))
		w.want("LOGIN_REPLY " + token + " phone " + want)
		return w
	}
	few, other, many := login("few", "2"), login("other", "16"), login("many", "32767")
	for _, w := range []*wire{few, other, many} {
		var together []byte // or a second might pass between them, and the limit with it
		for i := range 3 {
			together = append(together, w.frame(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: fmt.Sprint("u", i), ReceiverId: "bob"})...)
		}
		w.send(together)
		got := []string{w.next(), w.next(), w.next()}
		slices.Sort(got) // a refusal does not wait for the logic tier
		for i, answer := range got {
			if i == 2 && w == few {
				if !strings.HasPrefix(answer, "MESSAGEACK u2 ACK_RETRY rate_limited") {
					t.Errorf("over the connection's own limit: %q", answer)
				}
			} else if answer != fmt.Sprintf("MESSAGEACK u%d ACK_OK", i) {
				t.Errorf("within the limit: %q", answer)
			}
		}
	}
	if a, b := r.g.override(stateclient.Limits{InflightFrames: 7}), r.g.override(stateclient.Limits{InflightFrames: 7}); a != b || a.windowFrames != 7 || a.messages != r.g.rules.messages {
		t.Error("the same limits are not shared, or change what they do not name")
	}
}

// TestLateClaim: a login that took long, and then finds that another one holds the only place, has lost it. It is told to
// connect again, and nobody is kicked for it.
func TestLateClaim(t *testing.T) {
	var once sync.Once
	held, release := make(chan struct{}), make(chan struct{})
	redis := testenv.Redis(t)
	r := run(t, startLogic(t, &logic{connect: func(ctx context.Context, in *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
		if in.GetDeviceId() == "late" {
			once.Do(func() { close(held) })
			<-release
			<-time.After(150 * time.Millisecond) // it thinks for longer than a login stays fresh
		}
		return decide(ctx, in)
	}}), func(c *Config, d *Deps) {
		asksBackend(c, d)
		d.Routes = nil
		c.Routes.Redis.Addrs, c.Routes.Policy, c.Routes.LookupTimeout = []string{redis.Addr}, policySingle, deadline
	})
	eventually(t, "the gateway is ready", func() bool { return len(r.g.Ready()) == 0 })
	late := r.connect(t, protocolTCP)
	late.command(clientv1.CommandType_LOGIN, &clientv1.Login{Token: "alice", DeviceId: "late"})
	<-held
	winner := r.dial(t, protocolTCP, "alice", "phone")
	close(release)
	late.want("ERROR route_conflict 4008", "EOF")
	winner.command(clientv1.CommandType_HEARTBEAT, nil)
	winner.want("HEARTBEAT")
	if list := r.devices(t, "alice"); len(list) != 1 || list["phone"].DeviceID == "" {
		t.Errorf("routes: %v", list)
	}
}
