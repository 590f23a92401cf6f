package ratelimit

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

// originKey returns the Redis key of an origin's state. The key contains a hash of the origin, because an agent could
// choose a very long origin. The hash is also the key's hash tag, so that all keys of an origin are in one hash slot of
// a Redis cluster.
func originKey(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return "herald:limits:{" + hex.EncodeToString(sum[:16]) + "}"
}

// endpointID returns the id of an endpoint within its origin: a hash of 12 characters without a space.
func endpointID(endpoint string) string {
	sum := sha256.Sum256([]byte(endpoint))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}
