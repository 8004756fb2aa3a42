package stage

import (
	"net/http"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"google.golang.org/protobuf/proto"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

// User is a connection without any reliability of its own, for looking at what the system says.
type User struct {
	t    testing.TB
	conn *websocket.Conn
}

// Dial logs a user in at the upgrade, as one device.
func Dial(t testing.TB, url, uid, device string) *User {
	t.Helper()
	bearer := http.Header{"Authorization": {"Bearer " + Token(t, uid)}}
	for end := time.Now().Add(Within); ; {
		conn, resp, err := websocket.DefaultDialer.DialContext(t.Context(), url+"?device_id="+device, bearer)
		if resp != nil {
			_ = resp.Body.Close() // the connection is not its body
		}
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return &User{t, conn}
		}
		// What a busy machine has held up is asked for again, as every client does.
		if resp == nil || resp.StatusCode != http.StatusServiceUnavailable || time.Now().After(end) {
			t.Fatalf("%s: %v %+v", uid, err, resp)
		}
	}
}

// Send writes one command.
func (u *User) Send(kind clientv1.CommandType, m proto.Message) {
	u.t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		u.t.Fatal(err)
	}
	b, err := proto.Marshal(&clientv1.Command{Type: kind, Data: data})
	if err != nil {
		u.t.Fatal(err)
	}
	if err := u.conn.WriteMessage(websocket.BinaryMessage, b); err != nil {
		u.t.Fatal(err)
	}
}

// Await reads commands up to one of this kind, which it decodes into m. What comes before it is dropped.
func (u *User) Await(kind clientv1.CommandType, m proto.Message) {
	u.t.Helper()
	if err := u.conn.SetReadDeadline(time.Now().Add(Within)); err != nil {
		u.t.Fatal(err)
	}
	for {
		_, b, err := u.conn.ReadMessage()
		if err != nil {
			u.t.Fatalf("waiting for %v: %v", kind, err)
		}
		var c clientv1.Command
		if err := proto.Unmarshal(b, &c); err != nil {
			u.t.Fatal(err)
		}
		if c.GetType() != kind {
			continue
		}
		if err := proto.Unmarshal(c.GetData(), m); err != nil {
			u.t.Fatal(err)
		}
		return
	}
}
