// Package service assembles Herald from its parts: it starts or reaches Postgres, Redis and the chains, wires the
// pipeline, and takes everything down in the right order. The worker, the enqueue command and the demo differ only in
// what of it they use.
//
// What does not live here: what any of the parts do. Order of starting: HTTP (so that health can be asked for),
// embedded services, then Postgres and Redis are waited for together, migrations, run.json as soon as Postgres is
// there, and tasks are taken. Chains are watched and not waited for. Order of stopping: no more tasks, running ones
// end, the rest.
package service
