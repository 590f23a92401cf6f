package outcome

// Status is the state of a delivery (docs/design/delivery.md).
type Status string

// All statuses. The comment of package store says when a final status changes.
const (
	Queued    Status = "queued"    // ready: in its agent's backlog, or dispatched with a task in Redis
	Running   Status = "running"   // claimed by a worker
	Waiting   Status = "waiting"   // until the time of its next attempt, or until another delivery has ended
	Held      Status = "held"      // until an operator or a setting releases it
	Delivered Status = "delivered" // the agent accepted it
	Skipped   Status = "skipped"   // no call was needed
	Rejected  Status = "rejected"  // no attempt can succeed, because of the job, the event or the agent's answer
	Dead      Status = "dead"      // given up: its attempts are used up, or it is too old
	Cancelled Status = "cancelled" // ended by an operator or a reorg
)

// Final reports whether a delivery with this status has ended.
func (s Status) Final() bool {
	switch s {
	case Delivered, Skipped, Rejected, Dead, Cancelled:
		return true
	}
	return false
}
