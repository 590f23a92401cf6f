package outcome

import (
	"time"
)

// Failure is the error of a step of the executor that determined the reason itself. It wraps no error of another
// package.
type Failure struct {
	Reason Reason
	Text   string        // a sentence for the operator, without secrets
	Pause  time.Duration // length of the wait if it is free (Reason.Free); 0: BackOff
	Ours   bool          // an operator's setting caused it (Bar): the agent is not at fault
}

func (f *Failure) Error() string { return f.Text }

// Fail returns a *Failure with the reason r, which decides whether the delivery ends, is held or waits (Reason.Ending).
func Fail(r Reason, text string) error { return &Failure{Reason: r, Text: text} }

// Bar returns a *Failure that an operator's setting caused, so that it is not counted as the agent's fault. With Fail,
// some reasons, such as tool_not_found, count as the agent's fault (package classify).
func Bar(r Reason, text string) error { return &Failure{Reason: r, Text: text, Ours: true} }

// Pause returns a *Failure for a free wait of d ±20 %, or of BackOff if d is 0. r must be a reason whose waits are free
// (Reason.Free).
func Pause(r Reason, d time.Duration, text string) error {
	return &Failure{Reason: r, Text: text, Pause: d}
}

// Verdict is the classification of an attempt's failure.
type Verdict struct {
	Reason     Reason
	Ending     Status
	Free       bool   // the wait or hold is free: the attempt does not count
	AgentFault bool   // the agent's server or document is at fault, not Herald
	Unknown    bool   // the agent may have executed the call; its policy onUnknown decides about another call
	Moved      bool   // the agent may have moved to another endpoint: cached data about its endpoint may be stale
	Unwell     bool   // the endpoint accepted no call or did not finish it; its breaker counts this as failed
	Text       string // a sentence for the operator, without secrets

	RetryAfter time.Duration // the Retry-After of the agent or server; 0: none
	Pause      time.Duration // length of a free wait; 0: BackOff
}

// Limited reports whether the agent's other deliveries would have to wait for the same cause, so that dispatching them
// now is useless. The row of the reason says so.
func (v Verdict) Limited() bool { return rows[v.Reason].limits }
