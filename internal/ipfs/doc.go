// Package ipfs fetches the document at a URI: ipfs, https, http, data, ar, and the many spellings of them that occur
// on chain. docs/design/content.md describes it.
//
// Invariants:
//   - Content with Source "cid" is verified, block by block, against the CID in the URI. Gateways are untrusted: a
//     gateway that sends a wrong byte is only demoted, and content counts as not found only if every gateway reported
//     that.
//   - Content is returned only after it was received completely. It is never truncated.
//   - All hosts from untrusted URIs are dialled through netguard. Gateways belong to the operator. Their own client may
//     reach loopback and follows no redirects.
//   - Every fetch bounds its size, its time, the blocks visited, the links decoded, and the bytes from each gateway.
//     Only blocks with the codecs raw and dag-pb are decoded.
//   - URLs in errors contain neither user information nor a query.
//
// An ipfs document is fetched in these steps: normalise the URI; if it has a path, send one CAR request, which
// usually returns all blocks; walk the blocks with boxo's merkledag and unixfs, in a store that belongs to this
// fetch; request missing blocks from any gateway as raw blocks (exchange.go).
//
// Package erc8004 compares feedback hashes and parses files. Package resolver caches per agent.
package ipfs
