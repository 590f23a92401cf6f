// Package ipfs brings the bytes that a URI names: ipfs, https, http, data, ar
// and the many spellings of them that are found on chain.
//
// Invariants:
//   - What is returned with Source "cid" hashes, block by block, to the CID in
//     the URI. Gateways are untrusted: a wrong byte costs a gateway its turn and
//     nothing else, and "not found" is said only when every gateway said so.
//   - Bytes are returned only after a clean end: never a truncated document.
//   - Every stranger's host is dialled through netguard. Gateways are the
//     operator's, dialled by a client of their own that may reach loopback;
//     they are not followed anywhere (no redirects).
//   - Size, time, blocks visited, links decoded and bytes taken from each
//     gateway are bounded for every fetch; blocks of other codecs than raw and
//     dag-pb are not decoded.
//   - URLs in errors carry neither user information nor query.
//
// The way of an ipfs document: normalize → (path given: one CAR request that
// usually brings every block) → walk with boxo's merkledag and unixfs over a
// store of the fetch's own → blocks that are missing come through exchange.go
// as raw blocks from any gateway.
//
// What lives elsewhere: verdicts on feedbackHash and the shapes of the files
// (erc8004), caching per agent (resolver).
package ipfs
