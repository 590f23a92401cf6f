// Package secret keeps secrets out of sight and encrypted at rest.
//
// Secret is a text that prints as asterisks. Masker takes secrets out of what a stranger says who was sent them.
// Keyset is a Tink AEAD keyset: it seals bytes under a Binding, so that a ciphertext moved to another agent, origin
// or header does not open.
//
// What does not live here: where ciphertexts are stored (internal/store) and what they authenticate (internal/mcpcall).
package secret
