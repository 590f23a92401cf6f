// Package agentauth decides which stored credential goes to an agent's endpoint, keeps the access tokens of OAuth
// credentials fresh, and knows what an agent's challenge means and what a refusal leads to. A delivery authorizes its
// endpoint (Authorize), makes each request of the agent within WithTokenRefresh, and tells what came of it
// (ObserveFailure, ObserveSuccess).
//
// What does not live here: deliveries, claims and how they are recorded; how OAuth is spoken (package oauth); the rows
// (package store).
//
// Invariants:
//   - A token goes to the origin and path that it was stored for and nowhere else. An agent that moved is held until an
//     operator stores its token anew.
//   - A credential of an OAuth client goes to the issuer that was stored with it, and to no other.
//   - One worker at a time renews an access token (a lease in the store), and one request at a time within a worker.
//   - A renewed refresh token is stored before anything else is done, also when the delivery that needed it is stopped;
//     what Postgres does not take waits in Redis (RenewalSpool). So Redis is asked for a newer refresh token before
//     one from Postgres is used, and without its answer none is.
//   - What is remembered of stored tokens is sealed; errors and logs hold no token.
package agentauth
