// Package chaintrial tries what follows a chain (enqueue watch) against a chain that reorganises, behind a node that
// lies, while the followers are killed, and compares what Postgres holds afterwards with a plain reading of the
// chain, row by row.
//
// What lives here: Generator (events of every form that ERC-8004 ever had, as a contract of our own emits them),
// ReadBlocks and Compare (the plain reading and the comparison), Proxy (the lying node). They are pure and have
// ordinary quick tests. With the build tag chain there are the chains (a real anvil, pinned, and internal/devnet) and
// the trial itself, `make chain`.
//
// What does not live here: anything of what is tried. The plain reading asks for the logs of one block after the
// other and shares no code with chain.Follower; only the decoding of one log (erc8004.Decode, chain.Job) is the same,
// which the tests of those packages hold to the published ABIs.
//
// Invariants:
//   - The seed decides every event, block and reorg, and what the proxy's first, second, third request meets. Which
//     request comes when depends on the machine.
//   - On one branch a key comes once, as a registry would have it; after a reorg it may come again with other content.
package chaintrial
