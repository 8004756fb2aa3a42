// Package routes is the route table in Redis: which gateway holds which device of which user (design: protocol 4). One
// lease a gateway keeps all its routes alive; scripts compare before they write, so that a late claim, release or
// repair never disturbs a newer connection.
//
// The keys, and what their values hold:
//
//	route:uid:{alice}      HASH    device -> 1|epoch|conn_id|incarnation|generation|addr|platform|session_id|since in ms
//	gateway:<incarnation>  STRING  1|mark|addr|build|zone
//	gateways               ZSET    incarnation, score = end of its lease in ms of Redis time
//
// The first number is the version; a later version may only add fields at the end. Texts are escaped, so that a bar always
// separates. The last key is not in the design: an index of the leases, so that nobody has to SCAN for them. It is a hint; a
// gateway that is not in it is looked for under its own key (docs/adr/routes-in-redis.md has this and the other additions).
//
// A gateway has a Table and a Lease, each on a client of its own, and on Lease's OnLost and once in each audit passes its
// routes to Table.Restore. A StateServer has a Live that runs, and a Table that uses it to Find. Files: value.go has the
// format, lua/ the scripts and script.go how they are run; claim.go, table.go and find.go are the Table.
package routes

import "time"

// Route is where one device of one user is connected.
type Route struct {
	UID      string
	DeviceID string
	// Incarnation is one run of one gateway, Addr its internal address for Push.
	Incarnation string
	Addr        string
	ConnID      uint64
	// Epoch grows per uid with every claim: the fence for kick, release and repair.
	Epoch     int64
	Platform  string
	SessionID string
	Since     time.Time
	// Generation counts how often the gateway's lease was gone. The Table of the gateway sets it in what it writes; with
	// it a removal that was decided while the lease was gone misses a route that was written again since.
	Generation uint64
}

// Policy says how many connections one user may have.
type Policy uint8

const (
	// Multi allows one connection a device, DevicesMax devices.
	Multi Policy = iota
	// Single allows one connection.
	Single
)

// Claim asks for a route at login, or again later.
type Claim struct {
	// Route without Epoch.
	Route Route
	// LoginAge is how long ago the login was: the epoch is Redis time less LoginAge. A claim older than 100 ms that finds
	// a higher epoch where the policy leaves room for one only, loses.
	LoginAge   time.Duration
	Policy     Policy
	DevicesMax int
}

// ClaimResult is what became of one Claim.
type ClaimResult struct {
	// Epoch is set when the route was written.
	Epoch int64
	// Displaced are the routes that it replaced and that are to be kicked or superseded.
	Displaced []Route
	// Late says that the claim was not a fresh login (any more): what it displaced is closed with route_conflict, never
	// kicked.
	Late bool
	// Lost says that a newer connection holds the place: close with route_conflict.
	Lost bool
	// Err means unknown: queue a release until it is answered.
	Err error
}

// RestoreResult is what the audit found for one route.
type RestoreResult uint8

const (
	// Held: the route stood as it should.
	Held RestoreResult = iota
	// Restored: it was missing and has been written again; send RESYNC.
	Restored
	// LostToNewer: a newer connection holds the place; close with route_conflict.
	LostToNewer
	// Unknown: Redis did not answer.
	Unknown
)
