// Package legacy consumes the jobs of the old backend, which adds each job to a Redis list with LPUSH and never looks
// at it again.
//
// A worker moves up to a hundred of the oldest jobs to a processing list of its own, commits them in Postgres, and
// acknowledges them by deleting them from the processing list. The keys are:
//
//	action_jobs                          the old backend's list
//	{action_jobs}:processing:<worker>    the jobs that a worker moved and has not acknowledged
//	{action_jobs}:workers                a hash: each worker with a processing list, and the token of its batch
//	{action_jobs}:worker:<worker>        exists, with an expiry, while the worker is alive
//
// A worker that dies leaves its processing list behind. Another worker finds the list in the hash. When the dead
// worker's keep-alive key has expired, the other worker moves the elements back to the old backend's list. So each
// element is committed at least once. A job that was committed before is recognized by its key and remains one
// delivery.
//
// Package job defines the format of a job, and package intake handles invalid ones.
//
// Invariants:
//   - An element leaves Redis only after Postgres has committed a row for it.
//   - Every change in Redis is one script with a deadline. A script that Redis runs after its caller gave up changes
//     nothing.
//   - Foreign data under these keys causes an error in the log and a pause, but it does not stop the worker.
package legacy
