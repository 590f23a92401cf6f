// Package chain talks to the Ethereum nodes of a chain by JSON-RPC: it reads an agent's tokenURI, asks whether the
// event of a job is real, confirmed and not revoked, and follows the registries' logs.
//
// It speaks the few methods it needs directly and reads block hashes as the node says them: on several of the chains
// with registries the hash of a block is not what Ethereum's header encoding gives. Decoding of logs and calls is
// package erc8004's.
//
// node.go is the connection to one node, pool.go chooses among several and asks the next when one does not answer;
// limits.go recognises how they refuse, and complete.go finds the logs that they leave out.
//
// Invariants: New does no network; a node's chain id is compared before its first answer is believed, and again after
// each failure; a batch is answered by one node; every call has a deadline; the URL, which often holds a key, is in no
// error and no log. Any trouble with the nodes is an *UnavailableError, so that what is not one is the chain's own
// answer.
package chain
