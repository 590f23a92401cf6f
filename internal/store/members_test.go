package store

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// ofClient returns a feedback of another client than that of feedback.
func ofClient(client byte, index int) job.Job {
	j := feedback(1, index)
	j.ClientAddress = common.BytesToAddress([]byte{0xcc, client})
	return j
}

// follow claims up to n deliveries that can join the leader's call.
func follow(t *testing.T, s *Store, leader *ledger.Claim, n int) []ledger.Member {
	t.Helper()
	all, err := s.ClaimMembers(t.Context(), leader, n, lease)
	heraldtest.Must(t, err)
	return all
}

func indexes(all []ledger.Member) (list []uint64) {
	for _, f := range all {
		list = append(list, f.Job.FeedbackIndex)
	}
	return list
}

// TestMembersOfOneClient: the deliveries behind the leader are claimed in the order of their index, not in
// the order of acceptance, up to the first that cannot join.
func TestMembersOfOneClient(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.StrictOrder = true
	var in []ledger.Intake
	for _, i := range []int{1, 5, 3, 2, 4, 7, 6, 8} {
		in = append(in, ledger.Intake{Job: ofClient(1, i)})
	}
	revoked := ofClient(1, 6)
	revoked.Kind, revoked.Reason, revoked.Action.ToolName = job.KindFeedbackRevoked, job.RevokedByClient, "agent.receiveRevocation"
	_, tasks := accept(t, s, append(in, ledger.Intake{Job: revoked})...)
	leader := claim(t, s, tasks[0])
	all := follow(t, s, leader, 49)
	if got := indexes(all); !slices.Equal(got, []uint64{2, 3, 4, 5, 6, 7, 8}) { // the revocation of 6 blocks none
		t.Fatalf("%v follow", got)
	}
	for _, f := range all {
		if d := read(t, s, f.ID); d.Status != outcome.Running || d.Attempts != 1 || len(d.History) != 1 || f.Attempt != 1 || f.Err != nil ||
			f.LeaseUntil.Sub(f.StartedAt) != lease {
			t.Errorf("%+v of %+v", d, f.Claim)
		}
	}
	if again := follow(t, s, leader, 49); len(again) != 0 {
		t.Errorf("%v follow twice", indexes(again))
	}

	record(t, s, all[0].Claim, delivered)
	heraldtest.Must(t, s.GiveBack(t.Context(), all[1:]))
	for i, f := range all {
		d := read(t, s, f.ID)
		if i == 0 && d.Status != outcome.Delivered || i > 0 && (d.Status != outcome.Waiting || d.Reason != "behind_earlier" || d.Attempts != 0 || len(d.History) != 0) {
			t.Errorf("index %d is %s %s after %d attempts", f.Job.FeedbackIndex, d.Status, d.Reason, d.Attempts)
		}
	}
	record(t, s, leader, delivered)
	if _, err := s.Record(t.Context(), all[1].Claim, ledger.Outcome{Status: outcome.Rejected, Reason: "tool_error"}); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("what was given back is recorded: %v", err)
	}

	// The leader is final, so the first released delivery is its client's next.
	if d := read(t, s, all[1].ID); d.Status != outcome.Queued {
		t.Errorf("%s, and nothing is before it", d.Status)
	}
	if d := read(t, s, all[2].ID); d.Status != outcome.Waiting || d.Reason != "behind_earlier" {
		t.Errorf("%s %s, and one is before it", d.Status, d.Reason)
	}
}

// TestMembersOfTheBacklog: the oldest deliveries of the backlog follow, one per client plus those behind it.
// Deliveries with another action, with headers of their own or replayed ones do not follow.
func TestMembersOfTheBacklog(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.StrictOrder = true
	var in []ledger.Intake
	for c := range byte(20) {
		in = append(in, ledger.Intake{Job: ofClient(c, 1)})
	}
	other := ofClient(30, 1)
	other.Action.TimeoutMs = 1000
	sealed := ledger.Intake{Job: ofClient(31, 1), SealedHeaders: []byte("x")}
	late := ledger.Intake{Job: ofClient(40, 1)}
	answers, tasks := accept(t, s, append(in, ledger.Intake{Job: other}, sealed, ledger.Intake{Job: ofClient(32, 1)}, ledger.Intake{Job: ofClient(32, 2)}, ledger.Intake{Job: ofClient(32, 3)}, late)...)
	accept(t, s, ledger.Intake{Job: ofClient(50, 1), Bulk: true})
	exec(t, s, `UPDATE herald.deliveries SET replays = 1 WHERE id = $1`, answers[10].ID)
	leader := claim(t, s, tasks[0])

	heraldtest.Equal(t, "members", len(follow(t, s, leader, 3)), 3)
	all := follow(t, s, leader, 49)
	var clients []byte
	for _, f := range all {
		clients = append(clients, f.Job.ClientAddress[19])
	}
	// 0 to 7 are dispatched, and 8, 9 and 11 follow already.
	if want := []byte{12, 13, 14, 15, 16, 17, 18, 19, 32, 32, 32, 40, 50}; !slices.Equal(clients, want) {
		t.Errorf("clients %v follow, not %v", clients, want)
	}
	heraldtest.Equal(t, "count as dispatched", countDispatched(t, s), ledger.MaxDispatchedPerAgent)

	// Members use no slot of the backlog, and the delivery of a lost worker returns.
	r := record(t, s, leader, delivered)
	heraldtest.Equal(t, "dispatched", len(r.Next), 1)
	lapse(t, s, all[0].Claim)
	if d := read(t, s, all[0].ID); d.Status != outcome.Queued || d.Attempts != 1 {
		t.Errorf("%+v", d)
	}
	if back := follow(t, s, claim(t, s, tasks[1]), 49); len(back) != 1 || !back[0].InDoubt || !back[0].Called || back[0].N != 2 || back[0].Attempt != 2 {
		t.Errorf("%+v", back)
	}
	wait := record(t, s, all[1].Claim, ledger.Outcome{Status: outcome.Waiting, Reason: "server_error", Delay: -time.Second, Called: true, Stage: "call"})
	if wait.Task != nil {
		t.Errorf("%+v", wait.Task)
	}
	if tasks, _, err := s.Due(t.Context(), 10); err != nil || len(tasks) != 0 || read(t, s, all[1].ID).Status != outcome.Queued {
		t.Errorf("%v %v", tasks, err) // eight are dispatched
	}
}

// TestGivenBackMemberGivesUpItsTurn: an earlier delivery arrives while a Member has the turn of their ordering key.
// GiveBack ends the Member's turn, and the two deliveries are dispatched in their order.
func TestGivenBackMemberGivesUpItsTurn(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.StrictOrder = true
	var in []ledger.Intake
	for c := range byte(ledger.MaxDispatchedPerAgent) {
		in = append(in, ledger.Intake{Job: ofClient(c, 1)})
	}
	_, tasks := accept(t, s, append(in, ledger.Intake{Job: ofClient(20, 5)})...)
	leader := claim(t, s, tasks[0])
	all := follow(t, s, leader, 49)
	if len(all) != 1 || all[0].Job.FeedbackIndex != 5 {
		t.Fatal(indexes(all))
	}
	accept(t, s, ledger.Intake{Job: ofClient(20, 4)})
	heraldtest.Must(t, s.GiveBack(t.Context(), all))
	following := record(t, s, leader, delivered).Next
	for _, task := range tasks[1:] {
		following = append(following, record(t, s, claim(t, s, task), delivered).Next...)
	}
	if len(following) != 1 || following[0].ID != ofClient(20, 4).ID() {
		t.Fatalf("dispatched: %v", following)
	}
	if next := record(t, s, claim(t, s, following[0]), delivered).Next; len(next) != 1 || next[0].ID != ofClient(20, 5).ID() {
		t.Errorf("dispatched after it: %v", next)
	}
}

// TestGivenBackMemberDelaysLaterOnes: GiveBack ends the claims of two unchecked members of one client. When their own tasks
// run, from more than 10 s later on, the check of the first is put off. It still delays the second.
func TestGivenBackMemberDelaysLaterOnes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.StrictOrder = true
	heraldtest.Must(t, s.ReportVerified(t.Context(), []uint64{8453}))
	var in []ledger.Intake
	for c := range byte(ledger.MaxDispatchedPerAgent) {
		in = append(in, ledger.Intake{Job: ofClient(c, 1)})
	}
	_, tasks := accept(t, s, append(in, ledger.Intake{Job: ofClient(20, 1)}, ledger.Intake{Job: ofClient(20, 2)})...)
	all := follow(t, s, claim(t, s, tasks[0]), 49)
	heraldtest.Equal(t, "members", indexes(all), []uint64{1, 2})
	heraldtest.Must(t, s.GiveBack(t.Context(), all))
	exec(t, s, `UPDATE herald.work SET delays_until = delays_until - interval '11 s'`)
	var next []ledger.Task
	for _, task := range tasks[1:3] {
		next = append(next, record(t, s, claim(t, s, task), delivered).Next...)
	}
	heraldtest.Equal(t, "dispatched", len(next), 2)
	record(t, s, claim(t, s, next[0]), ledger.Outcome{Status: outcome.Waiting, Reason: outcome.AgentBusy, Task: true, Free: true, Stage: "claim"})
	second := claim(t, s, next[1])
	heraldtest.Must(t, s.Bind(t.Context(), second, ledger.Binding{Job: second.Job, Source: second.Source}))
	heraldtest.Equal(t, "index and whether it may be called", []any{second.Job.FeedbackIndex, second.MayCall}, []any{uint64(2), false})
}

// TestGivenBackWithoutLeader: an operator cancels the leader of a batch during its call, and the agent refuses the call.
// The members, which waited for the leader, are delivered.
func TestGivenBackWithoutLeader(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.StrictOrder = true
	_, tasks := accept(t, s, feedbacks(1, 1, 4)...)
	leader := claim(t, s, tasks[0])
	all := follow(t, s, leader, 49)
	heraldtest.Equal(t, "members", len(all), 3)
	_, _, _, err := s.Cancel(t.Context(), []uuid.UUID{leader.ID}, true)
	heraldtest.Must(t, err)
	heraldtest.Must(t, s.GiveBack(t.Context(), all))
	next, err := s.Backlog(t.Context(), 10)
	heraldtest.Must(t, err)
	for want := uint64(2); want <= 4; want++ {
		if len(next) != 1 {
			t.Fatalf("dispatched before feedback %d: %v", want, next)
		}
		c := claim(t, s, next[0])
		heraldtest.Equal(t, "index", c.Job.FeedbackIndex, want)
		next = record(t, s, c, delivered).Next
	}
}

// TestRetractionEndsABatch: a reorg replaces two delivered feedbacks of a client. The first new one takes no delivery
// into its call that is behind the retraction of the second: the retraction precedes the event that has its index now.
func TestRetractionEndsABatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.StrictOrder = true
	r := newChainReader(t, s)
	old := []job.Job{inBlock(feedback(1, 1), 101, 'a'), inBlock(feedback(1, 2), 101, 'a')}
	r.read(100, 101, true, old...)
	for _, j := range old {
		exec(t, s, `UPDATE herald.deliveries SET handed_at = NULL WHERE id = $1`, j.ID())
		bring(t, s, j.ID(), "delivered")
	}
	var in []job.Job
	for i := range old {
		j := inBlock(feedback(1, i+1), 103, 'b')
		j.Tag1, j.TransactionHash = "other", common.Hash{0xfe, byte(i)}
		in = append(in, j)
	}
	next := r.read(101, 103, true, in...).Tasks
	for _, want := range []string{"retraction of 1", "feedback 1", "retraction of 2", "feedback 2"} {
		if len(next) != 1 {
			t.Fatalf("before the %s: %v", want, next)
		}
		c := claim(t, s, next[0])
		got := fmt.Sprintf("feedback %d", c.Job.FeedbackIndex)
		if c.Job.IsRetraction() {
			got = fmt.Sprintf("retraction of %d", c.Job.FeedbackIndex)
		} else if all := follow(t, s, c, 49); len(all) > 0 {
			t.Fatalf("feedback %v is called together with %s", indexes(all), got)
		}
		heraldtest.Equal(t, "called", got, want)
		next = record(t, s, c, delivered).Next
	}
}
