// Package legacy moves jobs from the old backend's list in Redis to Postgres. The old backend is the system that Herald
// replaces (docs/operator/old-backend.md). It adds each job to the list with LPUSH and does not read it again.
//
// One worker at a time reads the list. It reads up to a hundred of the oldest jobs, commits them in Postgres, and then
// removes them from the list. The keys in Redis are:
//
//	action_jobs           the old backend's list
//	{action_jobs}:reader  the id of the worker that reads, which expires after its death
//
// The jobs of a worker that dies are still in the list. Once its id has expired, another worker reads. So each element
// is committed at least once. A job that was committed before has the same key, so it remains one delivery. For the
// same reason, two workers that read at a time do only unnecessary work.
//
// A batch contains the elements that a worker commits in one transaction.
//
// Package job defines the format of a job, and package intake stores jobs and handles invalid ones.
//
// Invariants:
//   - An element leaves Redis only after Postgres has committed a row for it.
//   - Every change in Redis is one script. If Redis runs a script late, after the worker's call timed out, the script
//     loses no element.
//   - Data of another program under these keys causes an error in the log and a pause, but it does not stop the worker.
package legacy
