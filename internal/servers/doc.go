// Package servers reads HERALD_SERVERS_FILE: what the operator himself says about agents' MCP servers, by chain and
// agent. An entry can say where an agent is called (then neither the chain nor the registration is asked), with which
// credentials, which of its tools, for how long at most, what becomes of calls whose outcome nobody knows, and that its
// deliveries are held (enabled: false).
//
// file.go reads the file, entry.go what it says about one server, strictly: an unknown field, the same key twice or a
// value that cannot be meant is an error with its line and path, and the file as a whole is not used. Set keeps the
// file that is in force and looks every 2 s whether there is a new one.
//
// What does not live here: what an entry means for a delivery (internal/delivery), how a server is called
// (internal/mcpcall).
//
// Invariants:
//   - Nothing that came out of the environment (${NAME}) is in an error, a log line, or Server.Display.
//   - A broken file changes nothing: what was in force stays so.
//   - Lookup takes no lock, and what it returns is never changed.
package servers
