// Package server is Herald's HTTP face: health, metrics and the asynq web UI, and in front of these and of all that is
// mounted (api, pages) the guard: who asks, from where, and whether they may.
//
// What does not live here: what is healthy (internal/service asks the parts) and what the monitor shows
// (internal/queue).
//
// Invariants (DESIGN §9):
//   - Off loopback nothing but /healthz and /readyz is served without a token; New refuses to listen there without
//     HERALD_API_TOKEN. On loopback looking is open while that is not set; changing always needs a token of the scope.
//   - On loopback the Host and Origin headers must be loopback's, or a web page elsewhere could read through the browser.
//   - Every route goes through the guard; a form brings its page's token, the API takes bearer tokens alone.
//   - Tokens are compared by hash, and never logged.
package server
