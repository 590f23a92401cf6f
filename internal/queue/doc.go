// Package queue is Herald's interface to Redis. It uses asynq, a library that stores tasks in Redis and runs them when
// they are due. Only this package and package webui, which serves asynq's web UI, import asynq.
//
// This package contains the lanes (asynq queues), the tasks, the asynq server and its logging, the spool (outcomes and
// credentials that Redis stores while Postgres is unavailable), and the checks of the Redis server. Packages delivery
// and store decide which deliveries have a task, and when the task is due. Postgres has all the data for that: if Redis
// loses its data, deliveries are late, but none is lost.
//
// Other programs may use the same Redis and the same queues. A foreign task is a task whose type is not one of Herald's
// (job.TaskTypes); Herald returns it to its queue. A task of Herald's type that contains a whole job instead of
// {deliveryId, n} goes to the intake, which creates a delivery from the job.
//
// Invariants:
//   - A task that Herald enqueues contains {deliveryId, n} and nothing else. n is the delivery's dispatch counter,
//     which Postgres increases with each new task. The id of the task is "<deliveryId>:<n>", and asynq does not add a
//     second task with the same id to a lane. Enqueue first deletes an ended task with this id.
//   - The task of a delivery that waits for a short time is in asynq's state retry, where the web UI shows the wait.
//     asynq counts such a wait, and the death of a worker, as a retry. Postgres counts the attempts, so asynq must
//     never archive a task because of its number of retries. Nor must it archive a whole job that is not stored.
//   - asynq cancels the handlers' contexts when Redis does not answer. A handler must finish its work nevertheless.
package queue
