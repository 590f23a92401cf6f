// Package chaintest has nodes for the tests of internal/chain: Node with answers that a test replaces, Script with
// scripted logs and blocks, Bend, which changes the answers of another node, and World, a development chain with an
// agent. It imports none of the packages that it tests.
package chaintest
