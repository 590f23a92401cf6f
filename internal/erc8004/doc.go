// Package erc8004 implements the formats of ERC-8004: the addresses of the registries on each chain, the events in all
// their ABI forms, the contract calls that Herald makes, the registration document of an agent, and the comparison of a
// file with its feedbackHash and its event.
//
// It does no I/O. All input is untrusted: decoding is bounded in size, count and depth, and returns an error instead of
// panicking. Strings from the chain are returned unchanged, so they may contain NUL or invalid UTF-8. Package job
// replaces these before Postgres stores them.
//
// Sources: ERC-8004 (text of 2026-01-25), the event history of the reference contracts, ERC-721, ERC-4906.
package erc8004
