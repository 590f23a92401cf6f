// Package retry decides, from an error alone, what becomes of a delivery: which reason of the closed list (DESIGN §4),
// whether it ends, waits or is held, whether that costs an attempt, and how long a wait is. It is pure: no I/O, no
// clock, the random number is handed in.
//
// Every error of chain, content, resolver, MCP, Postgres and this process is classified here and nowhere else.
package retry
