// Package ipfstest is a trustless gateway over blocks in memory, for tests and the demo. It serves raw blocks and
// CARs as the specification requires, imports content with boxo's own importer, and can misbehave in configurable
// ways.
//
// It also serves IPNS records that were added, but no deserialized files.
package ipfstest
