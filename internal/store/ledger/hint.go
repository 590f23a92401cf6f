package ledger

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// Source identifies the sender of a job, and how much the sender's choice of an action is trusted.
type Source struct {
	Name  string // "token:<name>", SourceRedis, SourceCommand or SourceChain
	Trust Trust
}

// Trust decides which action is used if several jobs name the same event at the same position. The action of the job
// with the highest Trust is used. Among jobs with equal Trust, the action of the first to arrive is used.
type Trust int

// The values of Trust.
const (
	TrustChain    Trust = iota // lowest: jobs made from events of the chain, which have the default action
	TrustOrdinary              // senders that must not set the fields that job.DirectField checks, such as an endpoint
	TrustDirect                // highest: commands of the operator, and senders that may set these fields
)

// Values of Source.Name for sources that are not API tokens.
const (
	SourceChain   = "chain"
	SourceCommand = "command"
	SourceRedis   = "redis" // all programs that write jobs to Redis; they count as one sender
)

// SourceToken returns the source for jobs that were sent with the API token of this name.
func SourceToken(name string, t Trust) Source { return Source{"token:" + name, t} }

const (
	maxHints       = 8 // hints of one delivery
	maxHintsOfPeer = 2 // hints of one delivery that one API token, or all writers to Redis together, may send
)

// isPeer reports whether maxHintsOfPeer limits the hints of s: s is an API token or Redis.
func (s Source) isPeer() bool {
	return s.Name == SourceRedis || strings.HasPrefix(s.Name, "token:")
}

// Hint is one of several jobs that were sent for one delivery's key. It names a position at which the chain may have
// the event, and an action. A worker's check reads the hints' positions and binds the delivery to the event that it
// finds (Bind).
type Hint struct {
	Rank          int // number in the order of arrival; 0: the job with which the delivery began
	Job           job.Job
	SealedHeaders []byte
	Source        Source
	Refuted       bool // a check found that the event is not at this position
	CreatedAt     time.Time
}

// AddHint adds the hint h to the hints of a delivery (list, by rank), and sets h's rank. It returns the new list and
// true. It returns the unchanged list and false in these cases:
//   - A hint of equal or higher trust names the same event at the same position.
//   - h's sender is an API token or Redis, and the list already has maxHintsOfPeer of its hints.
//   - The list has maxHints, none of them is refuted, and h's trust is not TrustChain.
//
// If the list has maxHints and h is added, h replaces the first refuted hint, or else the last one. The model
// (store/model) uses AddHint too.
func AddHint(list []Hint, h Hint) (_ []Hint, added bool) {
	sum, ofPeer := h.Job.EventSum(), 0
	for _, known := range list {
		if known.Job.EventSum() == sum && known.Source.Trust >= h.Source.Trust {
			return list, false
		}
		if known.Source.Name == h.Source.Name {
			ofPeer++
		}
	}
	if h.Source.isPeer() && ofPeer >= maxHintsOfPeer {
		return list, false
	}
	if n := len(list); n > 0 {
		h.Rank = list[n-1].Rank + 1
	}
	if len(list) == maxHints {
		drop := slices.IndexFunc(list, func(h Hint) bool { return h.Refuted })
		if drop < 0 && h.Source.Trust != TrustChain {
			return list, false
		}
		if drop < 0 {
			drop = len(list) - 1
		}
		list = slices.Delete(slices.Clone(list), drop, drop+1)
	}
	return append(list, h), true
}

// HasOtherAction reports whether the list has a hint with this trust whose action or headers differ from those of the
// job j. It omits hints that name another transaction than j: the chain has the event in one of them at most. sealed
// has the encrypted headers of j, and same compares other encrypted headers with them (SameHeaders).
func HasOtherAction(list []Hint, j job.Job, sealed []byte, trust Trust, same func(sealed []byte) bool) bool {
	return slices.ContainsFunc(list, func(h Hint) bool {
		return h.Source.Trust == trust && haveOneTransaction(h.Job, j) &&
			(h.Job.ActionSum() != j.ActionSum() || !SameHeaders(sealed, h.SealedHeaders, same))
	})
}

// haveOneTransaction reports whether two jobs name the same transaction, or one of them names none.
func haveOneTransaction(a, b job.Job) bool {
	none := common.Hash{}
	return a.TransactionHash == b.TransactionHash || a.TransactionHash == none || b.TransactionHash == none
}

// AdoptAction returns it, an event that was read from the chain, with the action, metadata, headers and source of a
// hint in list. Of the hints that name the event's agent, and the event's transaction or none, it uses the one of the
// most trusted sender, if this sender is more trusted than the source of it. The model (store/model) uses it too.
func AdoptAction(it Intake, list []Hint) Intake {
	for _, h := range list {
		j := h.Job
		if haveOneTransaction(j, it.Job) && h.Source.Trust > it.Source.Trust && AgentOf(j) == AgentOf(it.Job) {
			it.Job.Action, it.Job.Meta, it.SealedHeaders, it.Source = j.Action, j.Meta, h.SealedHeaders, h.Source
		}
	}
	return it
}

// SameHeaders reports whether two jobs have the same headers. a and b are their encrypted headers; nil: the job has
// none. same decrypts its argument and compares it with a. If same is nil, encrypted headers count as different.
func SameHeaders(a, b []byte, same func(sealed []byte) bool) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return same != nil && same(b)
}

// ErrNewHint is returned by Bind if, after the claim, a hint arrived or the chain follower read the event. The worker's
// check did not know that, so its result may be outdated.
var ErrNewHint = errors.New("another job of the event arrived during the check")

// Binding is an event that a worker's check read from the chain, together with the action for it.
type Binding struct {
	Job           job.Job  // the event as read from the chain, with the action (tool, endpoint, arguments)
	SealedHeaders []byte   // encrypted headers of the action's endpoint; nil: none
	Source        Source   // sender of the job that the action is from
	Corrected     []string // fields in which jobs that were sent differ from the event; nil: Bind keeps the old list
}

// Review is a request to a worker: read the event of a delivery from the chain again. The delivery has ended, or its
// agent was called. Later, a job with the delivery's key named another event, or the same event after it had left the
// chain. On a chain without a chain follower, only a review finds out whether a reorg replaced the event, and whether
// the event has returned.
type Review struct {
	ID    uuid.UUID
	Key   string
	Job   job.Job // the delivery's event as an earlier check read it
	Hints []Hint  // the delivery's hints, by rank
	// Recent is true if the newest hint arrived less than a minute ago (reviewAgain in package store). A node that lags
	// may not have the event that the hint names yet.
	Recent bool

	Newest int // the highest rank of the delivery's hints when the review was taken
}
