package ledger

import "github.com/agentherald/herald/internal/outcome"

// NoSuchDelivery is the reason that Replay and Cancel return for an id that no delivery has.
const NoSuchDelivery = "there is no such delivery"

// Ended selects the ended deliveries that a replay queues again. It always queues those with other states.
type Ended struct{ Delivered, Filtered, Cancelled bool }

// PreviousState is the state of a delivery before an operator's Replay or Cancel.
type PreviousState struct {
	Status outcome.Status
	Reason outcome.Reason
	HasJob bool
}

// movedMeanwhile is the reason for a delivery that another transaction changed during Replay or Cancel.
const movedMeanwhile = "it changed at the same moment: look again"

// WhyNotReplayed returns why Replay did not change a delivery in this state.
func (d PreviousState) WhyNotReplayed() string {
	switch {
	case d.Status == outcome.Queued:
		return "it is queued: it will be delivered without a replay"
	case d.Status == outcome.Running:
		return "it is being delivered now: only ended, waiting or held deliveries can be replayed"
	case !d.HasJob && d.Status == outcome.Rejected && d.Reason == outcome.InvalidJob:
		return "it never was a valid job: enqueue a corrected one"
	case !d.HasJob:
		return "its job was dropped by retention: there is nothing left to deliver"
	case d.Reason == outcome.Filtered:
		return "a filter of the agent's policy skipped it: replaying it delivers it all the same and needs force"
	case d.Status == outcome.Cancelled:
		return "it was cancelled after it was selected: replay it by its id, or select cancelled deliveries"
	case d.Status == outcome.Delivered:
		return "it is delivered: replaying it calls the agent again and needs force"
	}
	return movedMeanwhile
}

// WhyNotCancelled returns why Cancel did not change a delivery in this state.
func (d PreviousState) WhyNotCancelled() string {
	switch {
	case d.Status.Final():
		return "it has ended: it is " + string(d.Status)
	case d.Status == outcome.Running:
		return "it is being delivered now: cancelling it needs force, and does not undo the call"
	}
	return movedMeanwhile
}
