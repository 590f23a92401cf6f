// Package chain answers the questions of a delivery about a chain: whether the event of a job is real, confirmed and
// not revoked (Check), and which tokenURI an agent has.
//
// It asks through package node, and searches for events through package eventlog. Package follower, which reads all
// events of a chain, does not need it. docs/design/chain.md describes the whole.
//
// Invariants: the log is the content of an event, and a job only names it. No event counts that another contract than a
// listed registry emitted. Every problem with the nodes is a *node.UnavailableError, so that any other error is the
// chain's own answer.
package chain
