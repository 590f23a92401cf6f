package effort

import "time"

// What effort is spent on.
type What int

// The kinds of effort.
const (
	Calls What = iota
	Connections
	Listings
	Fetches
	whats
)

var names = [whats]string{"calls", "connections", "listings", "fetches"}

func (w What) String() string { return names[w] }

// leastPrice is what a thing costs however quickly it is done. All cost the time that a slot waits for them; what they
// cost beside it is this much, roughly, on the machine of docs/bench.md:
//   - a call nothing more: that is what slots are for;
//   - a connection keys and certificates, a session, sockets, and often a second try in another revision. Who drops
//     each connection pays a call and a connection every time;
//   - a listing the reading and compiling of schemas that a stranger wrote;
//   - a fetch the hashing and comparing of the file, also of one that is in the cache or in the URI itself.
var leastPrice = [whats]time.Duration{Connections: 50 * time.Millisecond, Listings: 20 * time.Millisecond,
	Fetches: time.Millisecond}

// priceOf is the price of n things that took so long together.
func priceOf(w What, n int, took time.Duration) time.Duration {
	return max(took, time.Duration(n)*leastPrice[w])
}
