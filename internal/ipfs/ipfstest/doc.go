// Package ipfstest is a real trustless gateway over blocks in memory, for tests
// and the demo: raw blocks and CARs as the specification has them, content made
// by boxo's own importer, and knobs that make it misbehave.
//
// It serves IPNS records that it is given, and nothing else: no deserialized files.
package ipfstest
