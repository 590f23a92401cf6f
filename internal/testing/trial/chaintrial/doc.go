// Package chaintrial tests the follower of a chain (enqueue watch) against a chain that reorganises, behind a node
// that lies, while the followers are killed. Afterwards it compares Postgres row by row with a plain reading of the
// chain.
//
// It contains Generator (events of every form that ERC-8004 ever had, emitted by a contract written for this
// package), ReadBlocks and Compare (the plain reading and the comparison) and Proxy (the lying node). These are pure
// and have ordinary quick tests. The build tag chain adds the chains (a pinned anvil, and internal/testing/devnet) and the
// trial itself, `make chain`.
//
// It contains no tested code. The plain reading asks for the logs of one block after the other and shares no code
// with package follower. It shares only the decoding of a single log (erc8004.Decode, eventlog.Job), which the tests of
// those packages compare with the published ABIs.
//
// Invariants:
//   - The seed determines every event, block and reorg, and how the proxy treats its first, second and third request.
//     The order of the requests depends on the machine.
//   - On one branch a key occurs once, as in a registry. After a reorg it may occur again with other content.
package chaintrial
