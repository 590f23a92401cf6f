// Package devnet is an Ethereum chain on this machine, with the three ERC-8004 registries deployed. It is a go-ethereum
// node that answers over HTTP and WebSocket on loopback, mines on demand or at an interval, and can reorganise. The
// demo runs the node inside its process (package fullnode), and tests run it in another one (package devnettest),
// because it is four times as large as the parts of go-ethereum that the worker needs.
//
// The registries are written in Solidity to the published ABIs (contracts/), as far as Herald and its tests use
// those. Package contracts has them, compiled.
//
// Invariants: The keys, and so the addresses of accounts and registries, are the same in every run. Every change of
// the chain holds one lock, so that no block appears between the steps of a reorg. Close waits for everything that
// Start started.
package devnet
