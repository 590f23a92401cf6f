package delivery

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
)

// TestConfirmationPause: for any duration of the missing blocks, the wait is neither negative nor excessive.
func TestConfirmationPause(t *testing.T) {
	t.Parallel()
	for missing, want := range map[time.Duration]time.Duration{
		-time.Second: minConfirmationPause, 0: minConfirmationPause, 90 * time.Millisecond: minConfirmationPause,
		600 * time.Millisecond: 600 * time.Millisecond, 24 * time.Second: 24 * time.Second,
		5 * time.Minute: maxConfirmationPause, math.MaxInt64: maxConfirmationPause,
	} {
		if got := findConfirmationPause(missing); got != want {
			t.Errorf("%s missing: %s, want %s", missing, got, want)
		}
	}
}

func TestDescribeMissing(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]chain.Standing{
		"needs 3 more blocks on top, about 600ms": {ConfirmedIn: 3, Wait: 600 * time.Millisecond},
		"name no safe block":                      {ConfirmedIn: 9, Wait: time.Second, Unnamed: "safe"},
	} {
		if got := describeMissing(s); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// standingChain returns the same standing for each check.
type standingChain chain.Standing

func (c standingChain) Check(context.Context, job.Job, chain.Verify) (chain.Standing, error) {
	return chain.Standing(c), nil
}

// TestUndatedWaitEnds: a job waits at most an hour for a block above an old head of an idle chain. Above other heads,
// it waits as long as necessary.
func TestUndatedWaitEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		undated bool
		waited  time.Duration
		want    outcome.Reason
	}{
		"59 minutes": {true, 59 * time.Minute, outcome.NotConfirmed},
		"an hour":    {true, time.Hour, outcome.EventNotFound},
		"a day, above a head that shows how far the chain is": {false, 24 * time.Hour, outcome.NotConfirmed},
	} {
		standing := standingChain{Found: true, Pending: true, ConfirmedIn: 9, Wait: time.Minute, Undated: c.undated}
		e := &Executor{Config: Config{Verify: chain.VerifyReceipt, Chain: func(uint64) (Chain, bool) { return standing, true }}}
		a := &attempt{claim: &store.Claim{CreatedAt: time.Now().Add(-c.waited), Job: job.Job{BlockNumber: 7}}}
		err := e.checkEvent(t.Context(), a)
		if failure, ok := errors.AsType[*outcome.Failure](err); !ok || failure.Reason != c.want || (len(a.event.refuted) > 0) != (c.want == outcome.EventNotFound) {
			t.Errorf("%s: %+v, %v", name, a.event, err)
		}
	}
}

// TestDescribeRefusal: the error names the field that the chain contradicts, and the setting that would help.
func TestDescribeRefusal(t *testing.T) {
	t.Parallel()
	retraction := job.Job{Kind: job.KindFeedbackRevoked, Reason: job.RevokedByReorg, ChainID: 7, FeedbackIndex: 3}
	named := retraction
	named.Retracts = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	at, bare := job.Job{ChainID: 7, TransactionHash: common.Hash{1}}, job.Job{ChainID: 7}
	for says, c := range map[string]struct {
		job  job.Job
		s    chain.Standing
		want outcome.Reason
	}{
		"list it in IDENTITY_REGISTRY_7":                {at, chain.Standing{Unlisted: true, Disagrees: "identityRegistry"}, outcome.EventNotFound},
		"list it in REPUTATION_REGISTRY_7":              {at, chain.Standing{Unlisted: true, Disagrees: "reputationRegistry"}, outcome.EventNotFound},
		"list it in VALIDATION_REGISTRY_7":              {at, chain.Standing{Unlisted: true, Disagrees: "validationRegistry"}, outcome.EventNotFound},
		"the chain has no such event":                   {at, chain.Standing{}, outcome.EventNotFound},
		"the chain has no such transaction":             {at, chain.Standing{Disagrees: "transactionHash"}, outcome.EventNotFound},
		"differs from the job in value":                 {at, chain.Standing{Disagrees: "value"}, outcome.EventNotFound},
		"HERALD_LOG_RANGE is 0":                         {bare, chain.Standing{Disagrees: "transactionHash"}, outcome.EventNotFound},
		"blocks 2 to 9 have no such event":              {bare, chain.Standing{Disagrees: "transactionHash", SearchedFrom: 2, SearchedTo: 9}, outcome.EventNotFound},
		"which the retraction says a reorg removed":     {retraction, chain.Standing{Disagrees: "blockHash"}, outcome.EventNotFound},
		"its transaction was mined again":               {named, chain.Standing{Disagrees: "transactionHash"}, outcome.MinedAgain},
		"the chain has a feedback 3 of this client":     {retraction, chain.Standing{Disagrees: "feedbackIndex"}, outcome.EventNotFound},
		"the retraction's blockNumber is missing":       {retraction, chain.Standing{Disagrees: "blockNumber"}, outcome.EventNotFound},
		"the chain differs from the retraction in tag1": {retraction, chain.Standing{Disagrees: "tag1"}, outcome.EventNotFound},
	} {
		if v := classify.Error(refuseEvent(c.job, c.s, false)); v.Reason != c.want || !strings.Contains(v.Text, says) {
			t.Errorf("%s: %s; want %s, %q", v.Reason, v.Text, c.want, says)
		}
	}
}

// TestSealedHeaders: the headers of a job that named another agent are sealed again for the event's agent. Headers that
// cannot be opened or read end the attempt.
func TestSealedHeaders(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	e := &Executor{Config: Config{Opener: keys, Sealer: keys}}
	sender := storetest.Feedback(1, 1)
	sender.Action = job.Action{Endpoint: &job.Endpoint{Transport: "http", URL: "https://a.example/mcp"}}
	event := sender
	event.AgentID = big.NewInt(2)
	seal := func(text string) []byte {
		return must(keys.Seal([]byte(text), sender.HeaderBinding(sender.Action.Endpoint.URL)))
	}
	b := store.Binding{Job: event, SealedHeaders: seal(`{"X-Key":"hunter2"}`)}
	must(0, e.resealHeaders(&b, sender))
	found, err := e.jobEndpoint(&store.Claim{Job: event, SealedHeaders: b.SealedHeaders}, mcpcall.Endpoint{})
	if err != nil || found.Headers["X-Key"].Reveal() != "hunter2" || !found.ownHeaders {
		t.Errorf("%+v, %v", found, err)
	}
	if err := e.resealHeaders(&b, sender); err == nil {
		t.Error("the headers are still sealed for the sender's agent")
	}
	none := sender
	none.Action.Endpoint = nil
	for want, c := range map[outcome.Reason]store.Claim{outcome.InternalError: {Job: sender, SealedHeaders: seal("[]")}, outcome.InvalidJob: {Job: none},
		outcome.AuthRequired: {Job: sender, SealedHeaders: must(must(secret.Create()).Seal([]byte("{}"), sender.HeaderBinding(sender.Action.Endpoint.URL)))}} {
		if _, err := e.jobEndpoint(&c, mcpcall.Endpoint{}); classify.Error(err).Reason != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// leases is a ledger that extends leases, or fails.
type leases struct {
	Ledger
	err      error
	extended []*store.Claim
}

func (l *leases) Extend(_ context.Context, c *store.Claim, _ time.Duration) error {
	l.extended = append(l.extended, c)
	return l.err
}

// TestFollowersLeases: before a call that begins late, the leases of all followers are extended. If one claim is lost,
// the call is not made.
func TestFollowersLeases(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		left     time.Duration
		err      error
		extended int
	}{"enough is left": {30 * time.Second, nil, 0}, "late": {29 * time.Second, nil, 2}, "lost": {29 * time.Second, store.ErrFenced, 1}} {
		l := &leases{err: c.err}
		e := &Executor{Config: Config{Ledger: l, Lease: time.Minute, LeaseMargin: 10 * time.Second, RecordTimeout: time.Second, Now: func() time.Time { return now }}}
		a := &attempt{batch: &batch{size: 3}}
		for range 2 {
			a.batch.members = append(a.batch.members, &follower{attempt: &attempt{claim: &store.Claim{}, lease: lease{now, c.left}}})
		}
		if err := e.ensureFollowersLeases(t.Context(), a, 20*time.Second); !errors.Is(err, c.err) || len(l.extended) != c.extended {
			t.Errorf("%s: %d extended, %v", name, len(l.extended), err)
		}
	}
}

// reviewLedger has no reviews, and fails every second time.
type reviewLedger struct {
	ReviewLedger
	asked int
}

func (l *reviewLedger) TakeReviews(context.Context, int) ([]store.Review, error) {
	if l.asked++; l.asked%2 == 0 {
		return nil, errAway
	}
	return nil, nil
}

// TestReviewEvents: a round runs each reviewPause until the worker stops. A failure of Postgres is logged, and the next
// round runs.
func TestReviewEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, said := logged(slog.LevelInfo)
		ctx, cancel := context.WithTimeout(t.Context(), 4*reviewPause+time.Second)
		defer cancel()
		ledger := &reviewLedger{}
		(&Runner{executor: e}).ReviewEvents(ctx, ledger)
		if ledger.asked != 4 || len(said()) != 2 {
			t.Errorf("%d rounds, logged %v", ledger.asked, said())
		}
	})
}
