// Package server is Herald's HTTP server. It serves health checks, metrics and the asynq web UI. The guard
// authenticates and authorizes every request to them and to mounted routes (packages api and pages).
//
// Package service decides which services are healthy, and package queue renders the asynq web UI.
//
// Invariants:
//   - Off loopback only /healthz, /readyz and open routes work without a token; New refuses to listen there without
//     HERALD_API_TOKEN. On loopback reading needs no token while HERALD_API_TOKEN is not set; changes always need one.
//   - On loopback the Host and Origin headers must be loopback's, or a web page elsewhere could read through the
//     browser.
//   - Every other route passes the guard. A form must contain its page's token, and the API accepts only bearer tokens.
//   - Tokens are compared by hash, and never logged.
package server
