package stateclient

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Modes of the relay.
const (
	// ModeStream carries batches on a few long-lived streams per backend.
	ModeStream = "stream"
	// ModeUnary makes one call a frame, for logic tiers that have nothing but the source documents' method.
	ModeUnary = "unary"
)

// Config says where the logic tier is and how much of it the relay may use. The keys are those of the gateway's file
// under relay: (design: operations). Default gives the values that stand there.
type Config struct {
	Mode string `koanf:"mode"`
	// UnaryMethod is the full name of the method that mode unary calls with a ReceiveMessageRequest.
	UnaryMethod string `koanf:"unary_method"`
	// Targets is static:///host:port,host:port or dns:///host:port; the latter is looked up every 5 s, and every address
	// found is one backend.
	Targets string `koanf:"targets"`
	// Timeout runs from Uplink.Received to its answer.
	Timeout           time.Duration `koanf:"timeout"`
	StreamsPerBackend int           `koanf:"streams_per_backend"`
	// Batch (2 to 512 items) and BatchBytes end one batch; an item that is larger than BatchBytes by itself goes alone.
	Batch      int     `koanf:"batch"`
	BatchBytes int     `koanf:"batch_bytes"`
	Breaker    Breaker `koanf:"breaker"`
	TLS        TLS     `koanf:"tls"`
	// Token, when set, goes with every stream and call as "authorization: Bearer ..." metadata.
	Token string `koanf:"token"`
	// Calls bounds the concurrent calls to one backend in mode unary.
	Calls int `koanf:"calls"`

	// Queue and QueueBytes bound what one backend's queues hold, unsent and unanswered together, in uplinks and in bytes
	// of payload. The file has the first one as backpressure.relay_queue.
	Queue      int `koanf:"-"`
	QueueBytes int `koanf:"-"`
	// AnswerBytes bounds the payload of one answer: a larger one could not be written to a client, and is Failed.
	AnswerBytes int `koanf:"-"`
	// Incarnation names this run of this gateway; GatewayAddr is where Push reaches it.
	Incarnation string `koanf:"-"`
	GatewayAddr string `koanf:"-"`
	// Room is told, from a goroutine of the relay, which of the connections that Submit refused may try again. It may
	// name one that is gone, and must not block. The slice is the relay's again when it returns.
	Room func(conns []uint64) `koanf:"-"`
}

// Breaker opens after Failures in a row and lets the first uplink through again after OpenFor.
type Breaker struct {
	Failures int           `koanf:"failures"`
	OpenFor  time.Duration `koanf:"open_for"`
}

// TLS encrypts the way to the backends when CA is set.
type TLS struct {
	// CA is a PEM file of the authorities that sign the backends' certificates, or "system" for the machine's own.
	CA string `koanf:"ca"`
	// Cert and Key are PEM files of the gateway's own certificate; they are read again for every new connection.
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
	// ServerName replaces the host of Targets as the name that a certificate must have.
	ServerName string `koanf:"server_name"`
}

// Default is the configuration for one backend on this machine.
func Default() Config {
	return Config{
		Mode:              ModeStream,
		UnaryMethod:       "/sluice.state.v1.StateServer/ReceiveMessage",
		Targets:           "static:///127.0.0.1:9200",
		Timeout:           300 * time.Millisecond,
		StreamsPerBackend: 2,
		Batch:             512,
		BatchBytes:        1 << 20,
		Breaker:           Breaker{Failures: 20, OpenFor: time.Second},
		Calls:             1024,
		Queue:             65536,
		// 1 KiB for each place in the queue: far more than a chat message, and small beside the machine of a gateway
		// that needs a queue this long.
		QueueBytes:  64 << 20,
		AnswerBytes: 65536,
	}
}

// FieldError names a configuration key whose value cannot be used.
type FieldError struct {
	// Key is the path as in the file, for example relay.timeout.
	Key   string
	Value any
	// Allowed says what could stand there instead.
	Allowed string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %v is not allowed: want %s", e.Key, e.Value, e.Allowed)
}

// Bounds of the configuration.
const (
	timeoutMin    = 10 * time.Millisecond // below it, two loops' clocks and the timer's own grain decide
	timeoutMax    = time.Minute           // a client gives a message up after 60 s
	streamsMax    = 64                    // more streams only make batches smaller
	batchMin      = 2                     // a frame may need a Connect before it
	batchMax      = 512                   // design: protocol 2; a backend may refuse more
	batchBytesMax = 4 << 20               // both sides accept messages of 8 MiB, and one item may come on top
	queueMax      = 1 << 24               // places are counted in 32 bits
	callsMax      = 16384                 // each is a goroutine and an HTTP/2 stream
	answerMax     = 4 << 20
	backendsMax   = 256 // each costs a few connections and goroutines; a wrong DNS name may give thousands
)

// Validate names every key whose value cannot be used, its value, and what is allowed.
func (c Config) Validate() error {
	var errs []error
	fail := func(key string, value any, allowed string) {
		errs = append(errs, &FieldError{Key: key, Value: value, Allowed: allowed})
	}
	between := func(key string, value, low, high int) {
		if value < low || value > high {
			fail(key, value, fmt.Sprintf("%d to %d", low, high))
		}
	}
	if c.Mode != ModeStream && c.Mode != ModeUnary {
		fail("relay.mode", fmt.Sprintf("%q", c.Mode), "stream or unary")
	}
	if parts := strings.Split(c.UnaryMethod, "/"); len(parts) != 3 || parts[0] != "" || parts[1] == "" || parts[2] == "" {
		fail("relay.unary_method", fmt.Sprintf("%q", c.UnaryMethod), "/package.Service/Method")
	}
	if _, err := parseTargets(c.Targets); err != nil {
		fail("relay.targets", fmt.Sprintf("%q", c.Targets), err.Error())
	}
	if c.Timeout < timeoutMin || c.Timeout > timeoutMax {
		fail("relay.timeout", c.Timeout, fmt.Sprintf("%v to %v", timeoutMin, timeoutMax))
	}
	between("relay.streams_per_backend", c.StreamsPerBackend, 1, streamsMax)
	between("relay.batch", c.Batch, batchMin, batchMax)
	between("relay.batch_bytes", c.BatchBytes, 1, batchBytesMax)
	between("relay.breaker.failures", c.Breaker.Failures, 1, 1_000_000)
	if c.Breaker.OpenFor < timeoutMin || c.Breaker.OpenFor > timeoutMax {
		fail("relay.breaker.open_for", c.Breaker.OpenFor, fmt.Sprintf("%v to %v", timeoutMin, timeoutMax))
	}
	between("relay.calls", c.Calls, 1, callsMax)
	between("backpressure.relay_queue", c.Queue, c.StreamsPerBackend, queueMax)
	between("relay queue bytes", c.QueueBytes, 1, 1<<40)
	between("relay answer bytes", c.AnswerBytes, 1, answerMax)
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		fail("relay.tls", "one of cert and key", "both or neither")
	}
	if c.TLS.CA == "" && (c.TLS.Cert != "" || c.TLS.ServerName != "") {
		fail("relay.tls.ca", `""`, `a file, or "system", when anything else of relay.tls is set`)
	}
	return errors.Join(errs...)
}

// targets is Config.Targets taken apart: either addrs is set, or host and port are.
type targets struct {
	addrs      []string
	host, port string
}

const (
	staticScheme = "static:///"
	dnsScheme    = "dns:///"
)

func parseTargets(s string) (targets, error) {
	if rest, ok := strings.CutPrefix(s, dnsScheme); ok {
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" || port == "" {
			return targets{}, errors.New("dns:///host:port")
		}
		return targets{host: host, port: port}, nil
	}
	rest, ok := strings.CutPrefix(s, staticScheme)
	if !ok {
		return targets{}, errors.New("static:///host:port,host:port or dns:///host:port")
	}
	addrs := strings.Split(rest, ",")
	for _, a := range addrs {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return targets{}, fmt.Errorf("host:port instead of %q", a)
		}
	}
	if len(addrs) > backendsMax {
		return targets{}, fmt.Errorf("at most %d addresses", backendsMax)
	}
	return targets{addrs: addrs}, nil
}
