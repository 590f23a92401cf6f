// Package eventlog reads the event logs of one chain by ranges of blocks, and converts them to jobs. complete.go and
// receipts.go find logs that nodes left out. It does not decide where reading begins, and stores nothing.
//
// Invariants: one request returns the logs of a range and its ends, so that both come from one node. Logs are in the
// chain's order. Receipts that hash to the receiptsRoot of a block prove all of its logs.
package eventlog
