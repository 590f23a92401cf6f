// Package netguard dials addresses that untrusted parties chose: a tokenURI, an agent's endpoint, OAuth metadata, a
// feedback URI.
//
// Invariants:
//   - The address is checked when it is connected, after name resolution, and for every address that is tried. So a
//     name that resolves to a private address, or a resolver that changes its answer, does not bypass the guard. Only
//     public unicast addresses are allowed (IANA special-purpose registries, through code.dny.dev/ssrf), plus the
//     networks that the operator listed. Of a NAT64 address, the IPv4 address in it counts.
//   - Only https is allowed. Plain http needs Config.AllowHTTP, or a connected address inside Config.AllowNetworks.
//   - There is no proxy, no transparent decompression and no cookie. Headers and times are bounded. Only HTTP/1.1 is
//     used, because its limits are tested.
//   - Redirects are off, or limited to a few, and each hop passes the same checks.
//
// Guard.Configured dials agents that the operator listed. It also allows private networks that are not denied, and
// keeps the bounds.
//
// The packages that use other addresses of the operator (RPC nodes, gateways, Redis) dial them without this package.
// Readers of bodies must bound the bodies themselves.
package netguard
