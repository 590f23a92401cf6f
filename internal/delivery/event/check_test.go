package event

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// TestConfirmationPause: for any duration of the missing blocks, the wait is neither negative nor excessive.
func TestConfirmationPause(t *testing.T) {
	t.Parallel()
	for missing, want := range map[time.Duration]time.Duration{
		-time.Second: minConfirmationPause, 0: minConfirmationPause, 90 * time.Millisecond: minConfirmationPause,
		600 * time.Millisecond: 600 * time.Millisecond, 24 * time.Second: 24 * time.Second,
		5 * time.Minute: maxConfirmationPause, math.MaxInt64: maxConfirmationPause,
	} {
		heraldtest.Equal(t, missing.String()+" missing", findConfirmationPause(missing), want)
	}
}

func TestDescribeMissing(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]chain.Standing{
		"needs 3 more blocks on top, about 600ms":       {ConfirmedIn: 3, Wait: 600 * time.Millisecond},
		"revoked this feedback, in a block that is not": {ConfirmedIn: 3, Wait: time.Second, Revoking: true},
		"name no safe block":                            {ConfirmedIn: 9, Wait: time.Second, Unnamed: "safe"},
	} {
		heraldtest.Contains(t, "the text", describeMissing(s), want)
	}
}

// standingChain returns the same standing for each check.
type standingChain chain.Standing

func (c standingChain) Check(context.Context, job.Job, chain.Verify) (chain.Standing, error) {
	return chain.Standing(c), nil
}

// checkerOf returns a Checker that verifies events against one chain.
func checkerOf(c Chain) *Checker {
	return &Checker{Verify: chain.VerifyReceipt, Chain: func(uint64) (Chain, bool) { return c, true }}
}

// clock is the time of the claims by Postgres' clock, from which that of the worker's machine may differ.
var clock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// verdict is the result of a check, without its texts.
type verdict struct {
	reason    outcome.Reason // empty: the event is confirmed
	pause     time.Duration
	refuted   bool // the job's hint
	undecided bool
	gone      *ledger.Gone
}

var confirmed, unfound = verdict{}, verdict{reason: outcome.EventNotFound, refuted: true, undecided: true}

// waits is the verdict about an event that is not confirmed.
func waits(pause time.Duration) verdict {
	return verdict{reason: outcome.NotConfirmed, pause: pause, undecided: true}
}

// hasLeft is the verdict about an event that the agent may know and the chain no longer has.
func hasLeft(undecided, refuted bool, next *job.Job) verdict {
	return verdict{reason: outcome.EventNotFound, refuted: refuted, undecided: undecided, gone: &ledger.Gone{Next: next}}
}

// checked is a claim with the chain's answer, and the verdict about it.
type checked struct {
	chain Chain
	claim ledger.Claim
	age   time.Duration // of the job, by Postgres' clock
	want  verdict
}

// runChecks checks the claims. Each error must contain a text.
func runChecks(t *testing.T, rows map[string]checked, text string) {
	t.Helper()
	for name, c := range rows {
		checker := checkerOf(c.chain)
		checker.Ledger = rowLedger{}
		c.claim.CreatedAt, c.claim.StartedAt = clock.Add(-c.age), clock
		var r Result
		err := checker.Check(t.Context(), &c.claim, nil, &r)
		got := verdict{reason: reasonOf(err), refuted: len(r.Refuted) > 0, undecided: r.Undecided, gone: r.Gone}
		if err != nil {
			got.pause = classify.Error(err).Pause
			heraldtest.Contains(t, name, err.Error(), text)
		}
		heraldtest.Equal(t, name, got, c.want)
	}
}

// TestPendingWaits: the longer a transaction is not mined, the less often the nodes are asked for it. It may stay unmined
// for as long as the delivery lives. A job waits at most an hour for a block above an old head of an idle chain.
func TestPendingWaits(t *testing.T) {
	t.Parallel()
	pending := standingChain{Found: true, Pending: true, ConfirmedIn: 4, Wait: 6 * time.Second}
	undated := pending
	undated.Undated = true
	runChecks(t, map[string]checked{
		"at once":                {chain: pending, want: waits(6 * time.Second)},
		"a minute":               {chain: pending, age: time.Minute, want: waits(6 * time.Second)},
		"10 minutes":             {chain: pending, age: 10 * time.Minute, want: waits(time.Minute)},
		"a day":                  {chain: pending, age: 24 * time.Hour, want: waits(maxConfirmationPause)},
		"undated, 59 minutes":    {chain: undated, age: 59 * time.Minute, want: waits(maxConfirmationPause)},
		"undated, after an hour": {chain: undated, age: time.Hour, want: unfound},
	}, "")
}

// TestUnseenEventIsAwaited: the node may lag behind the node of the job's sender, so an event or a reorg that it does not
// know counts as not found only a minute after the job arrived. If the node knew the event before, it does not lag.
func TestUnseenEventIsAwaited(t *testing.T) {
	t.Parallel()
	unseen, canonical := standingChain{Disagrees: "transactionHash", Unseen: true}, standingChain{Disagrees: "blockHash"}
	given := ledger.Claim{Job: job.Job{TransactionHash: common.Hash{1}}}
	retraction := ledger.Claim{Job: job.Job{Kind: job.KindFeedbackRevoked, Reason: job.RevokedByReorg, BlockNumber: 7}}
	own, bound, boundRetraction := retraction, given, retraction
	own.Job.Retracts, bound.Bound, boundRetraction.Bound = "6ba7b810-9dad-11d1-80b4-00c04fd430c8", true, true
	ownCalled, minedAgain := own, unfound
	ownCalled.Called = true
	minedAgain.reason = outcome.MinedAgain
	runChecks(t, map[string]checked{
		"a new job":                           {unseen, given, 0, waits(2 * time.Second)},
		"a job of 10 seconds ago":             {unseen, given, 10 * time.Second, waits(10 * time.Second)},
		"a job of 40 seconds ago":             {unseen, given, 40 * time.Second, waits(20 * time.Second)},
		"a job of a minute ago":               {unseen, given, time.Minute, unfound},
		"an event that a reorg removed":       {unseen, bound, 0, unfound},
		"a transaction without the event":     {standingChain{Disagrees: "transactionHash"}, given, 0, unfound},
		"a retraction of a block that stays":  {canonical, retraction, 0, waits(2 * time.Second)},
		"such a retraction that has waited":   {canonical, boundRetraction, 0, waits(2 * time.Second)},
		"such a retraction of a minute ago":   {canonical, retraction, time.Minute, unfound},
		"such a retraction of Herald's own":   {canonical, own, 0, waits(2 * time.Second)},
		"Herald's own of a minute ago":        {canonical, own, time.Minute, minedAgain},
		"Herald's own, and called":            {canonical, ownCalled, 0, minedAgain},
		"a retraction whose feedback returns": {standingChain{Disagrees: "feedbackIndex"}, retraction, 0, unfound},
	}, "")
}

// TestUnlistedRegistryOfReadEvent: Herald has read the event from a registry that this worker's settings do not list, for
// example because another worker was restarted with a further registry. The delivery waits up to an hour for a worker
// with that registry. The chain was not asked, so the event never counts as removed by a reorg.
func TestUnlistedRegistryOfReadEvent(t *testing.T) {
	t.Parallel()
	unlisted := standingChain{Unlisted: true, Disagrees: "reputationRegistry"}
	unread := ledger.Claim{Job: job.Job{ChainID: 7, TransactionHash: common.Hash{1}}}
	bound, called, own := unread, unread, unread
	bound.Bound, called.Bound, called.Called, own.Job.Retracts = true, true, true, "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	runChecks(t, map[string]checked{
		"a new event":              {unlisted, bound, 0, waits(2 * time.Second)},
		"an event of 20 minutes":   {unlisted, bound, 20 * time.Minute, waits(10 * time.Second)},
		"an event of an hour":      {unlisted, bound, time.Hour, unfound},
		"the agent was called":     {unlisted, called, 0, waits(2 * time.Second)},
		"called an hour ago":       {unlisted, called, time.Hour, unfound},
		"Herald's own retraction":  {unlisted, own, 0, waits(2 * time.Second)},
		"Herald has read no event": {unlisted, unread, 0, unfound},
	}, "REPUTATION_REGISTRY_7")
}

// TestLostKey: a worker held a delivery when a reorg gave its key to another event, and did not call the agent. If the
// delivery's event returns to the chain, the key's delivery brings it to the agent. The old one must not bring it too: its
// retraction may have ended, because the agent did not know it. An operator may replay it. It never brings the other event.
func TestLostKey(t *testing.T) {
	t.Parallel()
	j, id := storetest.Feedback(1, 1), uuid.New()
	other := j
	other.Tag1, other.TransactionHash = "other", common.Hash{9}
	its, another := standingChain{Found: true, Confirmed: true, Event: &j}, standingChain{Found: true, Confirmed: true, Event: &other}
	lost := ledger.Claim{ID: id, Key: j.Key() + "~" + id.String(), Job: j, Bound: true}
	replayed := lost
	replayed.Replay = true
	runChecks(t, map[string]checked{
		"its event returns":               {its, lost, 0, hasLeft(false, false, nil)},
		"its event returns, and a replay": {its, replayed, 0, confirmed},
		"the other event stays":           {another, lost, 0, hasLeft(false, false, nil)},
		"the other event stays, a replay": {another, replayed, 0, hasLeft(false, false, &other)},
	}, "")
}

// TestCalledBeforeTheChainIsVerified: an agent was called for a job that no worker verified (HERALD_VERIFY_EVENT=off),
// and the retry is verified. If the chain has the event of the job, the retry sends it. If the chain has another event
// under the key, or none, the delivery is retracted, and the other event gets a delivery of its own (storetest,
// TestGoneAfterACall). If the job names no transaction, nothing shows that the event is gone.
func TestCalledBeforeTheChainIsVerified(t *testing.T) {
	t.Parallel()
	sent := storetest.Feedback(1, 1)
	sent.TransactionHash, sent.BlockNumber = common.Hash{7}, 100
	other, elsewhere, nameless := sent, sent, sent
	other.Tag1, elsewhere.TransactionHash, nameless.TransactionHash = "other", common.Hash{9}, common.Hash{}
	called := ledger.Claim{Called: true, Job: sent, Key: sent.Key()}
	bare, boundBare := called, called
	bare.Job, boundBare.Job, boundBare.Bound = nameless, nameless, true
	its, none := standingChain{Found: true, Confirmed: true, Event: &sent}, standingChain{Disagrees: "transactionHash"}
	runChecks(t, map[string]checked{
		"the event":                       {its, called, 0, confirmed},
		"another event":                   {standingChain{Found: true, Confirmed: true, Event: &other}, called, 0, hasLeft(false, false, &other)},
		"the event elsewhere":             {&unindexedChain{block: 100, event: &elsewhere}, called, 0, hasLeft(false, true, &elsewhere)},
		"no event":                        {none, called, 0, hasLeft(true, true, nil)},
		"no transaction, the event":       {its, bare, 0, confirmed},
		"no transaction, bound":           {its, boundBare, 0, confirmed},
		"no transaction, no event":        {none, bare, 0, unfound},
		"no transaction, bound, no event": {none, boundBare, 0, unfound},
	}, "")
}

// TestReview: a review ends with the event that the chain has under the key, unless the node may lag behind a recent job.
// A worker whose settings do not list the registry does not end it within an hour after the newest job: another worker
// may find the event.
func TestReview(t *testing.T) {
	t.Parallel()
	sent := storetest.Feedback(1, 1)
	onChain := sent
	onChain.TransactionHash, onChain.BlockHash = common.Hash{7}, common.Hash{8}
	sent.TransactionHash = common.Hash{}
	unlisted, none := standingChain{Unlisted: true, Disagrees: "reputationRegistry"}, standingChain{Disagrees: "transactionHash"}
	found := standingChain{Found: true, Confirmed: true, Event: &onChain}
	for name, c := range map[string]struct {
		chain   Chain
		age     time.Duration // of the newest job
		recent  bool
		next    *job.Job
		decided bool
	}{
		"unlisted":                     {unlisted, 2 * time.Minute, false, nil, false},
		"unlisted, and the job is old": {unlisted, 2 * time.Hour, false, nil, true},
		"none":                         {none, 0, false, nil, true},
		"none, and the job is recent":  {none, 0, true, nil, false},
		"found":                        {found, 0, false, &onChain, true},
		"found, and the job is recent": {found, 0, true, nil, false},
	} {
		hint := ledger.Hint{Job: sent, CreatedAt: time.Now().Add(-c.age)}
		next, decided := checkerOf(c.chain).Review(t.Context(), ledger.Review{Job: sent, Recent: c.recent, Hints: []ledger.Hint{hint}})
		heraldtest.Equal(t, name+": next", next, c.next)
		heraldtest.Equal(t, name+": decided", decided, c.decided)
	}
}

// answering is a chain whose node answers only for transactions with these first bytes.
type answering map[byte]chain.Standing

func (c answering) Check(_ context.Context, j job.Job, _ chain.Verify) (chain.Standing, error) {
	if s, ok := c[j.TransactionHash[0]]; ok {
		return s, nil
	}
	return chain.Standing{}, &node.UnavailableError{ChainID: j.ChainID, Op: "reading logs", Err: errors.New("error -32005: too many")}
}

// TestUnansweredHint: a job determines the query to the node. If the node does not answer it, the other hints are tried.
// If the node answers for none, as in an outage, none is refuted.
func TestUnansweredHint(t *testing.T) {
	t.Parallel()
	bare, nowhere, at := job.Job{BlockNumber: 1}, job.Job{TransactionHash: common.Hash{9}}, job.Job{TransactionHash: common.Hash{7}}
	for name, c := range map[string]struct {
		hints   []job.Job
		chain   answering
		want    outcome.Reason
		refuted []int
	}{
		"for the first": {[]job.Job{bare, at}, answering{7: {Found: true, Event: &at}}, "", nil},
		"for the last":  {[]job.Job{nowhere, at}, answering{9: {Disagrees: "transactionHash"}, 0: {Disagrees: "transactionHash"}}, outcome.ChainUnavailable, []int{0}},
		"for none":      {[]job.Job{nowhere, at}, nil, outcome.ChainUnavailable, nil},
	} {
		var hints []ledger.Hint
		for rank, j := range c.hints {
			hints = append(hints, ledger.Hint{Rank: rank, Job: j})
		}
		var r Result
		_, err := (&Checker{Verify: chain.VerifyReceipt}).findEvent(t.Context(), c.chain, hints, clock, true, &r)
		heraldtest.Equal(t, name, reasonOf(err), c.want)
		heraldtest.Equal(t, name+": refuted hints", r.Refuted, c.refuted)
	}
}

// slowLedger needs 3 seconds to bind a delivery.
type slowLedger struct{ Ledger }

func (slowLedger) Bind(ctx context.Context, _ *ledger.Claim, _ ledger.Binding) error {
	return loop.Pause(ctx, 3*time.Second)
}

// TestSlowLedgerIsNoSlowCheck: while slow checks use all slots for them, a check whose node is quick ends, although
// Postgres is slow.
func TestSlowLedgerIsNoSlowCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gates, err := admission.New(admission.Config{Slots: 2})
		heraldtest.Must(t, err)
		defer gates.Close()
		_, release := gates.Begin("slow").AdmitCheck(t.Context(), 7)
		defer release()
		heraldtest.Must(t, loop.Pause(t.Context(), 2*time.Second))
		event := job.Job{ChainID: 7}
		checker := checkerOf(standingChain{Found: true, Confirmed: true, Event: &event})
		checker.Ledger = slowLedger{}
		heraldtest.Must(t, checker.Check(t.Context(), &ledger.Claim{Job: event}, gates.Begin("quick"), &Result{}))
	})
}

// unindexedChain has the event of a job in one block, but no index of transactions. It stores the checked jobs.
type unindexedChain struct {
	block   uint64   // the event's block
	newest  uint64   // the first block of a search without a block number
	event   *job.Job // nil: the checked job
	checked []job.Job
}

func (c *unindexedChain) Check(_ context.Context, j job.Job, _ chain.Verify) (chain.Standing, error) {
	c.checked = append(c.checked, j)
	if j.TransactionHash == (common.Hash{}) && (j.BlockNumber == c.block || j.BlockNumber == 0 && c.block >= c.newest) {
		return chain.Standing{Found: true, Event: cmp.Or(c.event, &j)}, nil
	}
	return chain.Standing{Disagrees: "transactionHash"}, nil
}

// TestUnindexedTransaction: if a node does not know the transaction of a hint, the event is searched in the newest
// blocks, and before that around the hint's block if Herald itself read the hint from the chain.
func TestUnindexedTransaction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trust    ledger.Trust
		at       uint64 // the hint's block
		searches []uint64
		found    bool
	}{
		"a follower's hint of an old block":     {ledger.TrustChain, 100, []uint64{100}, true},
		"a follower's hint that a reorg moved":  {ledger.TrustChain, 5100, []uint64{5100, 0}, false},
		"a follower's hint without a block":     {ledger.TrustChain, 0, []uint64{0}, false},
		"another sender's hint of an old block": {ledger.TrustOrdinary, 100, []uint64{0}, false},
	} {
		client := &unindexedChain{block: 100, newest: 5000}
		hint := ledger.Hint{Source: ledger.Source{Trust: c.trust},
			Job: job.Job{Kind: job.KindNewFeedback, TransactionHash: common.Hash{1}, BlockHash: common.Hash{2}, BlockNumber: c.at}}
		s, err := (&Checker{Verify: chain.VerifyReceipt}).findEvent(t.Context(), client, []ledger.Hint{hint}, clock, true, &Result{})
		if s.Found != c.found || (err == nil) != c.found {
			t.Errorf("%s: found %t, %v", name, s.Found, err)
		}
		var searches []uint64
		for _, j := range client.checked[1:] {
			searches = append(searches, j.BlockNumber)
		}
		heraldtest.Equal(t, name+": searches around", searches, c.searches)
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
// cannot be opened end the attempt.
func TestSealedHeaders(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	c := &Checker{Keys: keys}
	sender := storetest.Feedback(1, 1)
	sender.Action = job.Action{Endpoint: &job.Endpoint{Transport: "http", URL: "https://a.example/mcp"}}
	event := sender
	event.AgentID = big.NewInt(2)
	const headers = `{"X-Key":"hunter2"}`
	b := ledger.Binding{Job: event, SealedHeaders: must(keys.Seal([]byte(headers), sender.HeaderBinding(sender.Action.Endpoint.URL)))}
	heraldtest.Must(t, c.resealHeaders(&b, sender))
	if got, err := keys.Open(b.SealedHeaders, event.HeaderBinding(event.Action.Endpoint.URL)); err != nil || string(got) != headers {
		t.Errorf("%s, %v", got, err)
	}
	heraldtest.Fails(t, "to seal headers again that the event's agent has already", c.resealHeaders(&b, sender))
}

// rowLedger contains one delivery.
type rowLedger struct {
	Ledger
	row     ledger.Delivery
	err     error
	bindErr error
}

func (l rowLedger) DeliveryByKey(context.Context, string) (ledger.Delivery, error) {
	return l.row, l.err
}

func (l rowLedger) Bind(context.Context, *ledger.Claim, ledger.Binding) error { return l.bindErr }

func (l rowLedger) Delivery(context.Context, uuid.UUID) (ledger.Delivery, error) { return l.row, l.err }

// reasonOf returns the reason of an error, or "" without an error.
func reasonOf(err error) outcome.Reason {
	if err == nil {
		return ""
	}
	return classify.Error(err).Reason
}

// TestConfirmRetraction: a retraction is sent, with the id of the feedback's delivery, if the feedback may have reached
// the agent. It waits while this is not known.
func TestConfirmRetraction(t *testing.T) {
	t.Parallel()
	const forgotten, named = "0x01", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	for name, c := range map[string]struct {
		row  ledger.Delivery
		want outcome.Reason
		err  error  // of the ledger
		by   string // the retraction's transactionHash or the delivery that it names; "" neither
	}{
		"delivered":          {row: ledger.Delivery{Status: outcome.Delivered}},
		"being delivered":    {row: ledger.Delivery{Status: outcome.Running, History: []ledger.Attempt{{Stage: "claim"}}}, want: outcome.BehindEarlier},
		"called":             {row: ledger.Delivery{Status: outcome.Dead, History: []ledger.Attempt{{Stage: "call", Outcome: "dead"}}}},
		"its worker died":    {row: ledger.Delivery{Status: outcome.Rejected, History: []ledger.Attempt{{Stage: "claim"}}}},
		"never got that far": {row: ledger.Delivery{Status: outcome.Rejected, History: []ledger.Attempt{{Stage: "resolve", Outcome: "rejected"}}}, want: outcome.EventNotFound},
		"named, and skipped": {row: ledger.Delivery{Status: outcome.Skipped}, want: outcome.NeverDelivered, by: named},
		"unknown":            {err: ledger.ErrNotFound, want: outcome.EventNotFound},
		"Postgres is away":   {err: errors.New("it is away"), want: outcome.InternalError},
		"its transaction":    {row: ledger.Delivery{Status: outcome.Delivered, Job: encode(job.Job{TransactionHash: common.HexToHash(forgotten)})}, by: forgotten},
		"another's":          {row: ledger.Delivery{Status: outcome.Delivered, Job: encode(job.Job{})}, by: forgotten, want: outcome.EventNotFound},
	} {
		c.row.ID = uuid.New()
		p := &Checker{Ledger: rowLedger{row: c.row, err: c.err}}
		j := job.Job{Kind: job.KindFeedbackRevoked, Reason: job.RevokedByReorg, AgentID: big.NewInt(1), FeedbackIndex: 1}
		if c.by == named {
			j.Retracts = named
		} else {
			j.TransactionHash = common.HexToHash(c.by)
		}
		claim := &ledger.Claim{Job: j}
		_, err := p.confirmRetraction(t.Context(), claim, false)
		heraldtest.Equal(t, name, reasonOf(err), c.want)
		if err == nil {
			heraldtest.Equal(t, name+": retracts", claim.Job.Retracts, c.row.ID.String())
		}
	}
}

// TestRetractionOfMinedAgain: a retraction whose event is on the chain again is sent only if the event has a new delivery.
func TestRetractionOfMinedAgain(t *testing.T) {
	t.Parallel()
	row := ledger.Delivery{ID: uuid.New(), Key: "key", Status: outcome.Delivered}
	for key, want := range map[string]outcome.Reason{row.Key: outcome.MinedAgain, row.Key + "~" + row.ID.String(): ""} {
		checker := checkerOf(standingChain{Disagrees: "blockHash"})
		checker.Ledger = rowLedger{row: ledger.Delivery{ID: row.ID, Key: key, Status: row.Status}}
		var r Result
		claim := &ledger.Claim{Bound: true, StartedAt: time.Now(), Job: storetest.Feedback(1, 1).Retraction(row.ID)}
		heraldtest.Equal(t, key, reasonOf(checker.Check(t.Context(), claim, nil, &r)), want)
		heraldtest.Equal(t, key+": undecided", r.Undecided, want != "")
	}
}

// TestUnverifiedRetraction: the retraction names the feedback's delivery also if no event is read from the chain. If it
// cannot be bound, the check fails.
func TestUnverifiedRetraction(t *testing.T) {
	t.Parallel()
	row := ledger.Delivery{ID: uuid.New(), Status: outcome.Delivered}
	c := &Checker{Ledger: rowLedger{row: row}, Chain: func(uint64) (Chain, bool) { return nil, false }}
	retraction := job.Job{Kind: job.KindFeedbackRevoked, Reason: job.RevokedByReorg}
	for _, verified := range []bool{false, true} { // true: a worker verified the chain when the job was accepted
		claim := &ledger.Claim{Verified: verified, Job: retraction}
		heraldtest.Must(t, c.Check(t.Context(), claim, nil, &Result{}))
		heraldtest.Equal(t, "retracts", claim.Job.Retracts, row.ID.String())
	}
	c.Ledger = rowLedger{row: row, bindErr: ledger.ErrFenced}
	heraldtest.Fails(t, "without its claim", c.Check(t.Context(), &ledger.Claim{Verified: true, Job: retraction}, nil, &Result{}), ledger.ErrFenced)
}

// TestNeverDelivered: a revocation of, or a response to, a feedback that ended without a call is not sent. It is sent
// if the feedback was or may have been called, or if its attempts are no longer stored. Feedback itself, and a
// retraction after a reorg, are not checked.
func TestNeverDelivered(t *testing.T) {
	t.Parallel()
	ended := func(stage string) ledger.Delivery {
		return ledger.Delivery{Status: outcome.Dead, Attempts: 1, History: []ledger.Attempt{{Number: 1, Stage: stage, Outcome: "dead"}}}
	}
	for name, c := range map[string]struct {
		kind     job.Kind
		why      string
		feedback ledger.Delivery
		want     outcome.Reason
	}{
		"a revocation of what was skipped":        {job.KindFeedbackRevoked, job.RevokedByClient, ledger.Delivery{Status: outcome.Skipped, Reason: outcome.Revoked}, outcome.NeverDelivered},
		"a revocation of what was not found":      {job.KindFeedbackRevoked, job.RevokedByClient, ledger.Delivery{Status: outcome.Rejected, Reason: outcome.EventNotFound}, ""},
		"a response to what was never reached":    {job.KindResponseAppended, "", ended("resolve"), outcome.NeverDelivered},
		"a revocation of what was called":         {job.KindFeedbackRevoked, job.RevokedByClient, ended("call"), ""},
		"of what was delivered":                   {job.KindFeedbackRevoked, job.RevokedByClient, ledger.Delivery{Status: outcome.Delivered}, ""},
		"of what a dead worker had":               {job.KindResponseAppended, "", ledger.Delivery{Status: outcome.Dead, Attempts: 1, History: []ledger.Attempt{{Stage: "claim"}}}, ""},
		"of what is open, order being off":        {job.KindResponseAppended, "", ledger.Delivery{Status: outcome.Waiting}, ""},
		"of what retention has dropped":           {job.KindResponseAppended, "", ledger.Delivery{Status: outcome.Dead, Attempts: 3}, ""},
		"a retraction":                            {job.KindFeedbackRevoked, job.RevokedByReorg, ledger.Delivery{Status: outcome.Skipped}, ""},
		"a feedback, whose own row is never read": {job.KindNewFeedback, "", ledger.Delivery{Status: outcome.Skipped}, ""},
	} {
		j := storetest.Feedback(1, 1)
		j.Kind, j.Reason = c.kind, c.why
		e := &Checker{Ledger: rowLedger{row: c.feedback}}
		heraldtest.Equal(t, name, reasonOf(e.CheckFeedback(t.Context(), &ledger.Claim{Job: j})), c.want)
	}
}

// must returns v, or panics if err is not nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// encode returns j as the ledger stores it.
func encode(j job.Job) json.RawMessage { return must(json.Marshal(j)) }
