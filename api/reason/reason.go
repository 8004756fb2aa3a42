// Package reason is the one closed list of names for every way in which a message is refused, a connection ends or a
// login fails. The same name stands in the close code table, the metric label, the log field and the payload of
// MESSAGEACK, ERROR, KICK and RECONNECT, on the gateway, in the logic tier and in the SDKs (design: protocol 1).
package reason

// Reason is one entry of the list. The zero value means "none".
type Reason uint8

// By says who ended a connection; it is the label beside the reason in sluice_connections_closed_total.
type By string

// The three parties that can end a connection.
const (
	ByClient  By = "client"
	ByServer  By = "server"
	ByNetwork By = "network"
)

// The list. Order is the order of the table below; new entries are added at the end of their block.
const (
	None Reason = iota

	// Ends of connections that the peer or the network brought about.

	ClientClosed // Close frame, or FIN after everything was read.
	PeerReset    // RST, or an error of the socket.
	LoggedOut    // LOGOUT.

	// Ends of connections that the gateway decides. Codes 1000-1014 where a registered one fits, else 4000-4499 may
	// reconnect and 4500-4999 must not.

	ProtocolError   // RFC 6455 framing, or a TCP length of 0.
	UnsupportedData // A message type that the subprotocol does not have.
	InvalidUTF8     // Text that is not UTF-8.
	FrameTooBig     // A frame or message over limits.frame.bytes.
	TooManyFragments
	HandshakeTimeout
	LoginTimeout
	FrameTimeout
	IdleTimeout
	SlowConsumer // Outbox full, or a write stalled for write_timeout.
	InputOverflow
	ErrorBudget // More bad commands than limits.errors allows.
	NotLoggedIn // Anything but LOGIN before login.
	RouteConflict
	Superseded
	Kicked
	Displaced // Another login of the same user took this device's place.
	Draining
	Overloaded
	Internal
	TLSFailed
	BadProxyHeader
	BadCompression // A compressed message that cannot be inflated, or that has a rest behind its last block.

	// Refused logins and upgrades.

	BadToken
	TokenExpired
	WrongIdentity // The token is good, but for another uid or device than the one asked for.
	AuthRefused   // The logic tier said no (auth mode backend).
	AuthUnavailable
	RoutesUnavailable // Redis is not there and login.on_redis_down is reject.
	TooManyDevices
	BadRequest // Not a well-formed HTTP/1.1 upgrade request.
	NotFound
	UpgradeRequired
	OriginRefused
	HeaderTooLarge
	ConnectionLimit
	AcceptRate
	AddressLimit

	// Answers to single messages and commands; the connection stays.

	BadCommand // The envelope cannot be decoded.
	UnknownCommand
	BadMessage
	BadUUID
	BadReceiver
	BodyTooBig
	RateLimited
	Timeout // No answer from the logic tier in time: unknown.
	QueueFull
	NoBackend
	BackendError
	BackendRefused // The logic tier's status says: no effect, and no use in trying again.
	Rejected       // The same uuid was answered Unknown three times.
	UUIDReused
	Gap
	Expired
	StoreUnavailable
	DedupUnavailable
	NotMember
	NoSuchGroup
	MembersChanged // The group's members changed while the message was on its way: it is sent again, to those who are in.
	ConnectionGone // An uplink whose connection ended before its answer.
	RouteRestored  // RESYNC: the route was written after the login reply.

	count
)

type entry struct {
	name string
	// WebSocket close code, also Command.code of ERROR and KICK; 0 = does not close.
	code uint16
	// HTTP status when it ends an upgrade; 0 = never does.
	status uint16
}

var table = [count]entry{
	None: {"none", 0, 0},

	ClientClosed: {"client_closed", 1000, 0},
	PeerReset:    {"peer_reset", 1006, 0},
	LoggedOut:    {"logged_out", 1000, 0},

	ProtocolError:    {"protocol_error", 1002, 400},
	UnsupportedData:  {"unsupported_data", 1003, 0},
	InvalidUTF8:      {"invalid_utf8", 1007, 0},
	FrameTooBig:      {"frame_too_big", 1009, 0},
	TooManyFragments: {"too_many_fragments", 1008, 0},
	HandshakeTimeout: {"handshake_timeout", 4000, 408},
	LoginTimeout:     {"login_timeout", 4001, 0},
	FrameTimeout:     {"frame_timeout", 4002, 0},
	IdleTimeout:      {"idle_timeout", 4003, 0},
	SlowConsumer:     {"slow_consumer", 4004, 0},
	InputOverflow:    {"input_overflow", 4005, 0},
	ErrorBudget:      {"error_budget", 4006, 0},
	NotLoggedIn:      {"not_logged_in", 4007, 0},
	RouteConflict:    {"route_conflict", 4008, 0},
	Superseded:       {"superseded", 4009, 0},
	Kicked:           {"kicked", 4500, 0},
	Displaced:        {"displaced", 4501, 0},
	Draining:         {"draining", 1012, 503},
	Overloaded:       {"overloaded", 1013, 503},
	Internal:         {"internal", 1011, 500},
	TLSFailed:        {"tls_failed", 4010, 0},
	BadProxyHeader:   {"bad_proxy_header", 4011, 0},
	BadCompression:   {"bad_compression", 1007, 0},

	BadToken:          {"bad_token", 4502, 401},
	TokenExpired:      {"token_expired", 4012, 401},
	WrongIdentity:     {"wrong_identity", 4503, 403},
	AuthRefused:       {"auth_refused", 4504, 403},
	AuthUnavailable:   {"auth_unavailable", 4013, 503},
	RoutesUnavailable: {"routes_unavailable", 4014, 503},
	TooManyDevices:    {"too_many_devices", 4505, 0},
	BadRequest:        {"bad_request", 0, 400},
	NotFound:          {"not_found", 0, 404},
	UpgradeRequired:   {"upgrade_required", 0, 426},
	OriginRefused:     {"origin_refused", 0, 403},
	HeaderTooLarge:    {"header_too_large", 0, 431},
	ConnectionLimit:   {"connection_limit", 1013, 503},
	AcceptRate:        {"accept_rate", 1013, 503},
	AddressLimit:      {"address_limit", 1013, 503},

	BadCommand:       {"bad_command", 0, 0},
	UnknownCommand:   {"unknown_command", 0, 0},
	BadMessage:       {"bad_message", 0, 0},
	BadUUID:          {"bad_uuid", 0, 0},
	BadReceiver:      {"bad_receiver", 0, 0},
	BodyTooBig:       {"body_too_big", 0, 0},
	RateLimited:      {"rate_limited", 0, 0},
	Timeout:          {"timeout", 0, 0},
	QueueFull:        {"queue_full", 0, 0},
	NoBackend:        {"no_backend", 0, 0},
	BackendError:     {"backend_error", 0, 0},
	BackendRefused:   {"backend_refused", 0, 0},
	Rejected:         {"rejected", 0, 0},
	UUIDReused:       {"uuid_reused", 0, 0},
	Gap:              {"gap", 0, 0},
	Expired:          {"expired", 0, 0},
	StoreUnavailable: {"store_unavailable", 0, 0},
	DedupUnavailable: {"dedup_unavailable", 0, 0},
	NotMember:        {"not_member", 0, 0},
	NoSuchGroup:      {"no_such_group", 0, 0},
	MembersChanged:   {"members_changed", 0, 0},
	ConnectionGone:   {"connection_gone", 0, 0},
	RouteRestored:    {"route_restored", 0, 0},
}

// String is the name on the wire, in logs and in metrics.
func (r Reason) String() string {
	if r >= count {
		return "unknown"
	}
	return table[r].name
}

// Code is the WebSocket close code, and Command.code of the ERROR or KICK that ends a TCP connection. 0 means that
// this reason never closes an established connection.
func (r Reason) Code() uint16 { return table[r].code }

// Status is the HTTP status with which this reason ends an upgrade; 0 means that it never does.
func (r Reason) Status() int { return int(table[r].status) }

// MayReconnect says whether a client that saw this close code should connect again by itself (design: protocol 1).
func MayReconnect(code uint16) bool { return code < 4500 || code > 4999 }

// All lists every reason but None, in the order of the table.
func All() []Reason {
	all := make([]Reason, 0, count-1)
	for r := None + 1; r < count; r++ {
		all = append(all, r)
	}
	return all
}

// Parse finds a reason by its name; ok is false for a name that is not of the list.
func Parse(name string) (r Reason, ok bool) {
	for r := range count {
		if table[r].name == name {
			return r, true
		}
	}
	return None, false
}
