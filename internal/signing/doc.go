// Package signing signs the requests that Herald makes to agents, so that an agent can refuse whoever is not this
// Herald (RFC 9421 HTTP Message Signatures with Ed25519, RFC 9530 Content-Digest, and of the IETF's Web Bot Auth drafts
// the Signature-Agent header and the directory of keys).
//
//   - key.go is one key: made, sealed for the database, opened, named by its thumbprint;
//   - ring.go is the keys of an installation, which all its workers share, read anew every half minute;
//   - sign.go signs a request; directory.go publishes the public keys.
//
// What does not live here: where keys are stored and when they change (internal/store, internal/operator), which
// requests are signed (internal/mcpcall), and how an agent verifies (examples/agent/callers).
//
// Invariants: no private key leaves this package but sealed; a request is signed with a key that its directory has
// published, or not sent; Authorization and other secret headers are not among what is signed or read.
package signing
