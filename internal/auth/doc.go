// Package auth selects the stored credential for an agent's endpoint, keeps the access tokens of OAuth credentials
// fresh, interprets an agent's challenge, and decides the consequences of a refusal. A delivery authorizes its endpoint
// (Authorize), makes each request to the agent within WithTokenRefresh, and reports the result (ObserveFailure,
// ObserveSuccess). See docs/design/credentials.md.
//
// Other packages handle deliveries and record attempts (delivery), implement OAuth (oauth), and store the rows (store).
//
// Invariants:
//
//   - A token is sent only to the origin and path that it was stored for. Deliveries to an agent that moved are held
//     until an operator stores its token again.
//   - The credential of an OAuth client is sent only to the issuer that was stored with it.
//   - One worker at a time renews an access token (a lease in the store), and one request at a time within a worker.
//   - A renewed refresh token is stored before any other step, even if the delivery that needed it is stopped. If
//     Postgres cannot store it, it is kept in Redis (RenewalSpool). Therefore a worker asks Redis for a newer refresh
//     token before it uses one from Postgres, and uses none if Redis does not answer.
//   - Cached tokens of the store are encrypted. Errors and logs contain no token.
package auth
