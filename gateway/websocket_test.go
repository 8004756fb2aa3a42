package gateway

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
)

// ping is a ping of a client, with a number.
func ping(n int) []byte { return masked(0x89, binary.BigEndian.AppendUint32(nil, uint32(n))) }

// unlimited is for tests that send as fast as they can.
func unlimited(c *Config, d *Deps) {
	patient(c, d)
	c.Limits.Uplink.MessagesPerSecond, c.Limits.Uplink.MessagesBurst = 1<<20, 1<<20
	c.Limits.Uplink.BytesPerSecond, c.Limits.Uplink.BytesBurst = 1<<30, 1<<30
}

// TestPongsBetweenPushes: pongs are queued where a lease ends and pushes by whoever calls Push, and yet each frame is
// whole. Every push arrives once and in the order of its caller, and the newest ping has its pong.
func TestPongsBetweenPushes(t *testing.T) { everyWay(t, testPongsBetweenPushes) }

func testPongsBetweenPushes(t *testing.T, w way) {
	const pushers, each, pings = 4, 250, 1000
	r := w.run(t, startLogic(t, &logic{}), unlimited)
	client := r.dial(t, protocolWS, "alice", "phone")
	target := r.target(t, "alice")
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for n := range pings {
			_, _ = client.conn.Write(ping(n + 1))
		}
	})
	for p := range pushers {
		all.Go(func() {
			for n := range each {
				if got := r.push(t, message(p*each+n, 300), target)[0]; got != "RESULT_WRITTEN" && got != "RESULT_QUEUED" {
					t.Errorf("push: %s", got)
				}
			}
		})
	}
	var next [pushers]int
	newest := 0
	for arrived := 0; arrived < pushers*each || newest < pings; {
		f, n, err := client.stream.Next(client.buf, &codec.Limits{FrameBytes: 1 << 20, Fragments: 16})
		client.buf = client.buf[n:]
		switch {
		case err != nil:
			t.Fatalf("behind %d pushes and pong %d: %v", arrived, newest, err)
		case f.Kind == codec.KindPong:
			n := int(binary.BigEndian.Uint32(f.Payload))
			if n <= newest {
				t.Errorf("pong %d behind %d", n, newest)
			}
			newest = n
		case f.Kind == codec.KindCommand:
			var number int
			if _, err := fmt.Sscanf(describe(f.Payload), "MESSAGEDOWN %d", &number); err != nil {
				t.Fatalf("%q: %v", describe(f.Payload), err)
			}
			if p := number / each; number%each != next[p] {
				t.Fatalf("push %d where %d was next", number, p*each+next[p])
			}
			next[number/each]++
			arrived++
		default:
			if err := client.more(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPingsOfWhoDoesNotRead: pongs for a client that takes none of them wait in its outbox, which is bounded: it is not
// read any more above a quarter of the bound, or closed by an engine that cannot stop reading. Nobody waits for it.
func TestPingsOfWhoDoesNotRead(t *testing.T) { everyWay(t, testPingsOfWhoDoesNotRead) }

func testPingsOfWhoDoesNotRead(t *testing.T, w way) {
	const outbox = 64 << 10
	r := w.run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		unlimited(c, d)
		c.Backpressure.OutboxBytes, c.Backpressure.SendBuffer = outbox, 4096
	})
	near := &canary{w: r.dial(t, protocolTCP, "near", "phone")}
	deaf := r.dial(t, protocolWS, "deaf", "phone")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = deaf.conn.SetWriteDeadline(time.Now().Add(deadline))
		for many := strings.Repeat(string(masked(0x89, make([]byte, 125))), 100); ; {
			if _, err := deaf.conn.Write([]byte(many)); err != nil {
				return
			}
		}
	}()
	eventually(t, "pongs wait for it", func() bool { return r.g.engine.Stats().OutboxBytes > outbox/8 || r.g.gauges.open() == 1 })
	for range 100 {
		near.works()
		if n := r.g.engine.Stats().OutboxBytes; n > outbox/2 {
			t.Fatalf("%d bytes are queued", n)
		}
	}
	_ = deaf.raw.Close()
	<-ended
	eventually(t, "only the neighbour is left", func() bool { return r.g.gauges.open() == 1 })
	near.works()
}

// TestEarlyData: frames that come with the request are not lost.
func TestEarlyData(t *testing.T) { everyWay(t, testEarlyData) }

func testEarlyData(t *testing.T, w way) {
	r := w.run(t, startLogic(t, &logic{}), patient)
	client := r.connect(t, protocolWS)
	words := []string{"bearer=alice", "device_id=phone"}
	if w.windowBits != 0 {
		words = append(words, fmt.Sprint("deflate=", w.windowBits))
	}
	early := client.frame(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: "u1", ReceiverId: "bob", Content: "hello"})
	client.send(append(upgradeRequest(codec.WebSocket, words), early...))
	if status := client.http(); status != "101" {
		t.Fatalf("the upgrade was answered %s", status)
	}
	client.want("MESSAGEACK u1 ACK_OK")
}

// TestInflatedBytesAreCharged: the limit of bytes counts what a message has become, not what it was on the wire.
func TestInflatedBytesAreCharged(t *testing.T) {
	const size = 40 << 10
	r := way{config: compressed, windowBits: 15}.run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		c.Limits.Uplink.Mode = modeReject
		c.Limits.Uplink.BytesPerSecond, c.Limits.Uplink.BytesBurst = 1, size
	})
	client := r.dial(t, protocolWS, "alice", "phone")
	send := func(uuid string) {
		command := codec.AppendCommand(nil, clientv1.CommandType_MESSAGEUP, 0,
			&clientv1.MessageUp{Uuid: uuid, ReceiverId: "bob", Content: strings.Repeat("a", size)})
		client.send(masked(0xC2, deflated(t, command)))
	}
	send("u1")
	client.want("MESSAGEACK u1 ACK_OK")
	send("u2")
	if got := client.next(); !strings.HasPrefix(got, "MESSAGEACK u2 ACK_RETRY rate_limited") {
		t.Errorf("the second message was answered %q", got)
	}
}

// TestIdleHoldsNothing: once it is idle again, a connection holds nothing of what a large message in fragments needed: no
// compressor, no window, no buffer of the size of the message.
func TestIdleHoldsNothing(t *testing.T) { everyWay(t, testIdleHoldsNothing) }

func testIdleHoldsNothing(t *testing.T, w way) {
	const clients, size = 100, 30 << 10
	r := w.run(t, startLogic(t, &logic{}), unlimited)
	wires := make([]*wire, clients)
	round := func(uuid string) {
		for _, c := range wires {
			c.up("small-"+uuid, "bob")
			c.want("MESSAGEACK small-" + uuid + " ACK_OK")
			command := codec.AppendCommand(nil, clientv1.CommandType_MESSAGEUP, 0,
				&clientv1.MessageUp{Uuid: uuid, ReceiverId: "bob", Content: strings.Repeat(uuid, size/2)})
			c.send(append(masked(0x02, command[:size]), masked(0x80, command[size:])...))
			c.want("MESSAGEACK " + uuid + " ACK_OK")
			c.buf = nil
		}
	}
	for i := range wires {
		wires[i] = r.dial(t, protocolWS, fmt.Sprint("user", i), "phone")
		wires[i].up("first", "bob")
		wires[i].want("MESSAGEACK first ACK_OK")
		wires[i].buf = nil
	}
	base := heap()
	round("ab")
	grown, allowed := 0, 2<<10
	if strings.Contains(w.name, "tls") {
		allowed += 16 << 10 // crypto/tls keeps the buffer of the largest record that it has read
	}
	eventually(t, "nothing is held any more", func() bool {
		grown = (heap() - base) / clients
		return grown < allowed
	})
	t.Logf("%d bytes a connection", grown)
}
