// Package trial runs Herald as it is run in earnest, workers as processes of their own on a real Postgres and a real Redis, in
// order to break it and to measure it.
//
// What lives here: Site (services, programs, workers, what was enqueued), Agents (MCP servers in this process that record
// every call and can be made to misbehave), Foreign (programs of somebody else's), and what is read from them afterwards: Calls, Rows,
// Figures. The chaos tests (build tag chaos, `make chaos`), the tests with other people's MCP servers (build tag thirdparty, `make
// thirdparty`) and `make bench` stand on it, as does TestOutageLog, in every test run: what a worker's log says of outages.
//
// What does not: any of Herald's own code but internal/embedded. Jobs go in through the enqueue program, workers are the worker
// program, and the rows are read with SQL from the columns that DESIGN §4 promises; so a trial fails for what people outside
// would notice, and a worker of an older commit can take part. Only the canary test, which looks for secrets in everything that this
// leaves behind (TestCanary, in every test run), has an authorization server of another package's tests beside it.
//
// Invariants:
//   - A process that was started here ends with Close (a Foreign one with End), or with this process at the latest (Pdeathsig, on Linux).
//   - What a process says goes to a file. Config.Logs outlives Close: whoever looks into a failed trial needs it.
//   - Agents listen on loopback only, one address of 127/8 each, because Herald limits calls by origin. That is Linux' loopback;
//     elsewhere the addresses would have to be made first.
//   - Times of calls and of rows come from one machine's clock and may be compared.
package trial
