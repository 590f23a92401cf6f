// Package chain talks to the Ethereum nodes of a chain by JSON-RPC. It reads an agent's tokenURI, checks whether the
// event of a job is real, confirmed and not revoked, and follows the registries' logs.
//
// It calls the few methods it needs directly and uses block hashes as the node reports them: on several chains with
// registries, a block's hash differs from the hash of Ethereum's header encoding. Package erc8004 decodes logs and
// calls.
//
// node.go is the connection to one node. ask.go chooses among several nodes and asks the next one when a node does
// not answer. limits.go recognises refusals. complete.go finds logs that nodes left out. docs/design/chain.md
// describes the whole.
//
// Invariants: New makes no request. A node's chain id is compared before its first answer is used, and again after
// each failure. One node answers a whole batch. Every call has a deadline. The URL, which often contains a key,
// appears in no error and no log line. Every problem with the nodes is an *UnavailableError, so that any other error
// is the chain's own answer.
package chain
