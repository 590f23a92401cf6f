// Package app assembles a worker: it starts or reaches Postgres, Redis and the chains, connects the parts of the
// pipeline, and stops everything in the right order. The worker and the demo use it. Commands use its package backend.
//
// The parts themselves live in other packages. Order of starting: HTTP first, so that health checks work; then the
// embedded services; then Postgres and Redis, concurrently. Once Postgres answers, migrations run and run.json is
// written. When both answer, the worker takes tasks. It does not wait for chains. Order of stopping: followers of
// chains, then the task server, which waits for its running tasks, then the rest.
package app
