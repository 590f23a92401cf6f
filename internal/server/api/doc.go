// Package api is the HTTP API under /v1 (DESIGN §10): jobs in, deliveries and agents out, and what an operator can have
// done, as JSON; changes of status as a stream of events.
//
// What an answer holds and what a change does is internal/operator's and internal/intake's; who may ask is
// internal/server's. Here are the routes, one list of them with what the OpenAPI document says of each (routes.go), how
// requests are read and errors answered (answer.go), and the two that stream (jobs.go, events.go).
//
// Invariants: a route that is served is in the document, and an answer is of the type that the document tells; what is
// refused (401, 403, 413, 415, 429) is refused before its body is read; every error has the shape {"error": {"code",
// "message", "field"}}.
package api
