// Package netguard is the one way to dial an address that a stranger chose: a
// tokenURI, an agent's endpoint, OAuth metadata, a feedback URI.
//
// Invariants:
//   - The address is checked when it is connected, after name resolution and
//     for every address tried, so a name that resolves inward and a resolver
//     that changes its answer gain nothing. Only public unicast addresses pass
//     (IANA special-purpose registries, through code.dny.dev/ssrf), plus the
//     networks that the operator listed.
//   - https only. Plain http needs Config.AllowHTTP, or a connected address
//     inside Config.AllowNetworks.
//   - No proxy, no transparent decompression, no cookies; headers and times are
//     bounded. HTTP/1.1 only: its limits are the ones that are tested.
//   - Redirects are off, or at most a few, and each hop passes the same checks.
//
// Agents that the operator listed himself are dialled by Guard.Configured, which
// lets private networks through that are not denied, and keeps the bounds.
//
// What lives elsewhere: other addresses that the operator configured (RPC nodes,
// gateways, Redis) are dialled by their own packages and never through here;
// limits on bodies belong to whoever reads them.
package netguard
