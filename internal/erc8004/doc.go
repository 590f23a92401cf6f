// Package erc8004 knows the ERC-8004 contracts and documents: the deployed registries per chain, the events in every
// form they ever had, the few calls that Herald makes, the registration document of an agent and what a feedbackHash
// says about the bytes of a file.
//
// It does no I/O. Everything it reads was written by strangers: decoding is bounded in size, count and depth and
// returns an error rather than panicking. Strings are handed on exactly as they stood on the chain (they may hold NUL
// or invalid UTF-8); making them storable is the job package's business.
//
// Sources: ERC-8004 (text of 2026-01-25), the event history of the reference contracts, ERC-721, ERC-4906.
package erc8004
