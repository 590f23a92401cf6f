// Package follower reads the registries' logs from one block on, range by range, and hands them over as jobs. It
// remembers the hashes of blocks (Anchor), so that it reads again after a reorg, and checks later whether a node left
// out logs (Checks). It stores nothing: package watch keeps the cursors.
//
// Invariants: ranges are handed over in the chain's order. A range that begins before the end of the previous one
// replaces everything from there on. An error of the caller's functions ends the follower, and no error of a node does.
package follower
