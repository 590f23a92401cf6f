// Package oauth implements the client side of OAuth 2.1 for protected MCP servers. It parses a server's challenge (RFC
// 9110, RFC 6750), finds the resource and its authorization servers (RFC 9728), reads the metadata of an authorization
// server (RFC 8414, OpenID Connect Discovery), obtains tokens (client credentials with a secret or a signed assertion,
// refresh tokens, authorization code with PKCE), revokes tokens (RFC 7009), and registers a client (RFC 7591). See
// docs/design/credentials.md.
//
// Invariants:
//
//   - All data from a server is untrusted: its bytes, depth and number of entries and the time to receive it are
//     bounded. A JSON object with a duplicate name is rejected. Redirects are not followed. Endpoints are https, or
//     http on loopback, which the guard of Config.HTTP may still refuse.
//   - Issuers are compared as exact strings (RFC 8414 §3.3, RFC 9207 §2.4), apart from one final slash in the metadata
//     of agents and servers (SameIssuer). A credential is sent only to the endpoints of the given Server. The caller
//     must make sure that its Issuer is the one to which the credential is pinned.
//   - No secret appears in an error or in printed values. Text from a server in an error is one short line.
//   - A discovery makes at most 8 requests; obtaining or revoking a token makes 1. Each takes at most Config.Timeout.
//     Nothing is retried or cached.
//
// Other packages store credentials and tokens (internal/store), decide when to renew them (internal/auth), dial
// (internal/base/netguard), and run the login of a person (cmd/worker).
package oauth
