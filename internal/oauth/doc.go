// Package oauth is OAuth 2.1 as a client of protected MCP servers speaks it: what a server's challenge says (RFC
// 9110, RFC 6750), which resource and which authorization servers stand behind it (RFC 9728), what an authorization
// server can do (RFC 8414, OpenID Connect Discovery), how tokens are had (client credentials with a secret or a
// signed assertion, refresh tokens, authorization code with PKCE) and ended (RFC 7009), and how a client is
// registered (RFC 7591).
//
// Invariants:
//   - Everything that comes from a server is hostile until it is checked: bounded in bytes, time, depth and count; a key that stands twice
//     is refused; redirects are not followed; endpoints are https, or http on loopback, which the guard under Config.HTTP may still refuse.
//   - An issuer is compared by the letter, as RFC 8414 §3.3 and RFC 9207 §2.4 say. A credential is sent to the endpoints of one Server, and
//     whoever calls sees to it that this Server's Issuer is the one that the credential is pinned to.
//   - No secret is in an error or in anything that prints; foreign text in errors is short and of one line.
//   - At most 8 requests for one discovery, 1 for one token or its end, each no longer than Config.Timeout. Nothing is retried here and nothing kept.
//
// What lives elsewhere: where credentials and tokens are stored (internal/store), when they are renewed
// (internal/delivery), the dialling (internal/netguard), and who clicks (cmd/worker).
package oauth
