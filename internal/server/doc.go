// Package server is Herald's HTTP face: health, metrics and the asynq web UI, with authentication in front.
//
// What does not live here: what is healthy (internal/service asks the parts) and what the monitor shows
// (internal/queue).
//
// Invariants (DESIGN §9):
//   - Off loopback nothing but /healthz and /readyz is served without the token; New refuses to listen there without one.
//   - On loopback the Host and Origin headers must be loopback's, or a web page elsewhere could read through the browser.
//   - The token is compared in constant time and never logged.
package server
