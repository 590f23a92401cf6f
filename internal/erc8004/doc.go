// Package erc8004 implements the formats of ERC-8004: the deployed registries of each chain, the events in all their
// historical forms, the contract calls that Herald makes, the registration document of an agent, and the comparison
// of a file with its feedbackHash.
//
// It does no I/O. All input comes from untrusted writers. Decoding is bounded in size, count and depth, and returns
// an error instead of panicking. Strings are returned exactly as they are on the chain and may contain NUL or invalid
// UTF-8; package job makes them storable.
//
// Sources: ERC-8004 (text of 2026-01-25), the event history of the reference contracts, ERC-721, ERC-4906.
package erc8004
