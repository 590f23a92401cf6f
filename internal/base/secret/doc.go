// Package secret prevents secrets from being printed, and encrypts them for storage.
//
// Secret is a string that prints as asterisks. Masker removes secrets from an agent's text that echoes them. Keyset is
// a Tink AEAD keyset: it encrypts bytes under a Binding, so that a ciphertext that is copied to another agent, origin
// or header cannot be decrypted.
//
// Other packages store the ciphertexts (internal/store) and use the secrets (internal/auth, internal/mcpcall). See
// docs/design/credentials.md.
package secret
