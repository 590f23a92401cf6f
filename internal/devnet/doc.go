// Package devnet is an Ethereum chain inside the process, with the three ERC-8004 registries deployed: a real go-ethereum
// node that answers over HTTP and WebSocket on loopback, mines when told or by a ticker, and can be made to reorganise. The tests
// and the demo use it. It is never linked into the worker: it is four times the size of everything that the worker needs of
// go-ethereum.
//
// The registries are ours, written in Solidity to the published ABIs (contracts/), as far as Herald and its tests use those; the
// ABIs, the bytecode and the generated bindings (registry/) are committed, contracts/build.sh rebuilds them.
//
// Invariants: the keys and therefore the addresses of accounts and registries are the same in every run; everything that
// changes the chain goes through one lock, so that a block never appears between a reorg's steps; Close waits for what Start
// began.
package devnet
