// Package chain talks to an Ethereum node by JSON-RPC: it reads an agent's tokenURI, asks whether the event of a job is
// real, confirmed and not revoked, and follows the registries' logs.
//
// It speaks the few methods it needs directly and reads block hashes as the node says them: on several of the chains
// with registries the hash of a block is not what Ethereum's header encoding gives. Decoding of logs and calls is
// package erc8004's.
//
// Invariants: New does no network; the node's chain id is compared before its first answer is believed; every call has
// a deadline; the URL, which often holds a key, is in no error and no log. Any trouble with the node is an
// *UnavailableError, so that what is not one is the chain's own answer.
package chain
