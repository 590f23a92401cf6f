package effort

import "time"

// A What is a kind of work for an agent that costs worker time.
type What int

// The kinds of work: tool calls, new connections (and finding the endpoint in the agent's registration, and obtaining
// an access token), tools/list requests, and fetches of the files of feedback and of responses, which anyone may write.
const (
	Calls What = iota
	Connections
	Listings
	Fetches
	ResponseFetches
	kindCount
)

var names = [kindCount]string{"calls", "connections", "listings", "fetches", "response_fetches"}

// String returns the name of the kind, as in metrics.
func (w What) String() string { return names[w] }

// leastPrice is the least cost of one call, one connection, one listing and one fetch. If the slot was occupied for
// longer, the cost is that time (priceOf). A least price is about the time of the worker's own work, measured on the
// machine of docs/bench.md:
//   - a call: none;
//   - a connection: keys and certificates, a session, sockets, and often a second try with another protocol revision.
//     An agent that drops each connection pays for a call and a connection each time;
//   - a listing: parsing and compiling schemas that the agent wrote;
//   - a fetch: hashing and comparing the file, even if it comes from the cache or is in the URI itself.
var leastPrice = [kindCount]time.Duration{Connections: 50 * time.Millisecond, Listings: 20 * time.Millisecond,
	Fetches: time.Millisecond, ResponseFetches: time.Millisecond}

// priceOf returns the cost of n calls, connections, listings or fetches (w says which). took is their total duration.
// The cost is took, or n times the leastPrice of w if that is more.
func priceOf(w What, n int, took time.Duration) time.Duration {
	return max(took, time.Duration(n)*leastPrice[w])
}
