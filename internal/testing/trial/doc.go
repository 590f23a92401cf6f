// Package trial runs Herald as in production, with workers as separate processes on a real Postgres and a real Redis,
// in order to break it and to measure it.
//
// It contains Site (services, programs, workers, enqueued jobs), Agents (MCP servers in this process that record
// every call and can misbehave), Program (with third-party ones), and the results: Calls, Rows, Figures. The chaos
// tests (build tag chaos, `make chaos`), the tests with third-party MCP servers (build tag thirdparty, `make
// thirdparty`) and `make bench` use it. TestOutageLogOfPostgres and TestOutageLogOfRedis, which every test run includes,
// check the lines that a worker logs during outages.
//
// It uses no code of Herald except internal/base/embedded. Jobs are enqueued with the enqueue program, workers are the
// worker program, and rows are read with SQL from documented columns. So a trial fails for faults that users would
// notice, and a worker of an older commit can take part. Only the canary test (TestCanary, in every test run), which
// searches all output for secrets, also runs an authorization server from another package's tests.
//
// Invariants:
//   - A process that this package started ends with Close (a third-party one with End), or at the latest with this process
//     (Pdeathsig, on Linux).
//   - The output of processes goes to files. Config.Logs is kept after Close, because it is needed to analyse a failed
//     trial.
//   - Agents listen only on loopback, each on its own address of 127/8, because Herald limits calls by origin. On Linux
//     all these addresses exist; on other systems they must be configured first.
//   - Times of calls and of rows come from the clock of one machine and can be compared.
package trial
