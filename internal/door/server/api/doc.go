// Package api is the HTTP API under /v1. It accepts jobs, serves deliveries and agents as JSON, runs an operator's
// actions, and streams changes of status as server-sent events.
//
// Package operator and package intake implement the actions, and package server authenticates requests. This package
// contains the routes with their descriptions for the OpenAPI document (routes.go), the parsing of requests and the
// answering of errors (answer.go), and the two streams (jobs.go, events.go).
//
// Invariants: the document describes every route, and each response has the type in the document. A request with an
// insufficient token, a wrong Content-Type or a too large Content-Length is refused before its body is read. Every
// error has the form {"error": {"code", "message", "field"}}, except those of /mcp/call.
package api
