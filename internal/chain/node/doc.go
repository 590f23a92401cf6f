// Package node asks the Ethereum nodes of one chain by JSON-RPC. It knows blocks, and neither events nor jobs.
//
// It calls the few methods that Herald needs directly, and uses block hashes as the node reports them: on several
// chains with registries, a block's hash differs from the hash of Ethereum's header encoding.
//
// node.go is the connection to one node. ask.go chooses among several nodes and asks the next one when a node does not
// answer. limits.go recognises refusals. pool.go sends calls and batches.
//
// Invariants: New makes no request. A node's chain id is compared before its first answer is used, and again after each
// failure. One node answers a whole batch. Every call has a deadline. The URL, which often contains a key, appears in
// no error and no log line. Every problem with the nodes is an *UnavailableError or a *WrongChainError.
package node
