// Package signing signs the HTTP requests that Herald makes to agents, so that an agent can refuse requests of others.
// It implements RFC 9421 HTTP Message Signatures with Ed25519, RFC 9530 Content-Digest, and from the IETF's Web Bot
// Auth drafts the Signature-Agent header and the directory of keys.
//
//   - key.go creates, encrypts and decrypts a key, and computes its thumbprint, which is its id;
//   - ring.go holds the keys of an installation, which all its workers share, and reads them again every 30 s;
//   - sign.go signs a request; directory.go publishes the public keys.
//
// Other packages store and rotate keys (internal/store, internal/operator) and decide which requests are signed
// (internal/mcpcall). receiver/callers shows how an agent verifies signatures.
//
// Invariants: a private key leaves this package only in encrypted form. A request is signed with a key that the
// directory has published, or it is not sent. Authorization and other secret headers are neither signed nor read.
package signing
