// Package legacy takes the jobs of the old backend, which puts each into a list of Redis with LPUSH and forgets it.
//
// A worker moves the oldest ones, up to a hundred, into a processing list of its own, commits them in Postgres, and
// acknowledges them, all of which Redis keeps:
//
//	action_jobs                          the old backend's list
//	{action_jobs}:processing:<worker>    what a worker took and has not acknowledged
//	{action_jobs}:workers                who has such a list, and the token of its batch
//	{action_jobs}:worker:<worker>        there while the worker lives
//
// A worker that dies leaves its processing list behind; any other one finds it in the hash and, once it does not count
// as alive any more, puts its elements back. So an element is committed at least once, and a job that was committed
// already is known by its key: it is one delivery.
//
// What does not live here: what a job may say and what becomes of a bad one (job, intake).
//
// Invariants: an element leaves Redis only after Postgres has committed what became of it; every question to Redis is
// one script with a deadline, and one that Redis runs late, after its caller gave up, changes nothing; whatever else
// somebody writes under these keys costs an error in the log and a pause, never the worker.
package legacy
