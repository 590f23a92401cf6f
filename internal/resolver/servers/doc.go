// Package servers reads HERALD_SERVERS_FILE, in which the operator configures the MCP servers of agents, by chain and
// agent id. An entry can set the endpoint (then neither the chain nor the registration is consulted), the credentials,
// the allowed tools, a timeout, the handling of calls with an unknown outcome, and whether the agent's deliveries are
// held (enabled: false).
//
// file.go parses the file, entry.go the entry of one server. Parsing is strict: an unknown field, a duplicate key or an
// invalid value is an error with its line and path, and the whole file is rejected. Set holds the file in force and
// checks every 2 s for a new one.
//
// Other packages apply an entry to a delivery (internal/delivery) and call a server (internal/mcpcall).
//
// Invariants:
//
//   - No value from the environment (${NAME}) appears in an error, a log line, or Server.Display.
//   - If the file becomes invalid, the last valid one stays in force.
//   - Lookup takes no lock, and its result is never modified.
package servers
