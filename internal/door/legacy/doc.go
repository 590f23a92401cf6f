// Package legacy moves jobs from the old backend's list in Redis to Postgres. The old backend is the system that Herald
// replaces (docs/operator/old-backend.md). It adds each job to the list with LPUSH and does not read it again.
//
// A worker moves up to a hundred of the oldest jobs from that list to a processing list of its own, and commits them in
// Postgres. Then it acknowledges them: it deletes them from the processing list. The keys in Redis are:
//
//	action_jobs                          the old backend's list
//	{action_jobs}:processing:<worker>    the jobs that a worker moved and has not acknowledged
//	{action_jobs}:workers                a hash from each worker with a processing list to the token of its batch
//	{action_jobs}:worker:<worker>        the worker's keep-alive key, which expires after its death
//
// A worker that dies leaves its processing list in Redis. Another worker finds its id in the hash. Once the keep-alive
// key of the dead worker has expired, the other worker moves the elements back to the old backend's list. So each
// element is committed at least once. A job that was committed before has the same key, so it remains one delivery.
//
// A batch is the part of a processing list that a worker commits in one transaction.
//
// Package job defines the format of a job, and package intake stores jobs and handles invalid ones.
//
// Invariants:
//   - An element leaves Redis only after Postgres has committed a row for it.
//   - Every change in Redis is one script. If Redis runs a script late, after the worker's call timed out, the script
//     loses no element.
//   - Data of another program under these keys causes an error in the log and a pause, but it does not stop the worker.
package legacy
