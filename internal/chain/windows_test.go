package chain

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
)

// pacedChains lists a chain of every tested block time.
var pacedChains = []struct {
	chain uint64
	pace  time.Duration
}{{1, 12 * time.Second}, {10, 2 * time.Second}, {8453, 200 * time.Millisecond}, {4663, 90 * time.Millisecond}}

// pacedHead is the head of the nodes that pacedLog returns.
const pacedHead = 10_000_000

// pacedLog returns a node whose only event is the duration before below its head, and the event's job without a
// position.
func pacedLog(t *testing.T, chainID uint64, pace, before time.Duration) (*chaintest.Script, job.Job) {
	t.Helper()
	l, j := chaintest.ScriptedLog(t, pacedHead-uint64(before/pace))
	j.ChainID = chainID
	return &chaintest.Script{Chain: chainID, Head: pacedHead, Pace: pace, HeadAt: time.Now(), Logs: chaintest.Holding(l)}, j
}

// TestWindowsAreDurations: the time windows in which Check searches an event and waits for it do not depend on the
// block time.
func TestWindowsAreDurations(t *testing.T) {
	t.Parallel()
	day := erc8004.Depth{Time: 24 * time.Hour}
	number := func(c *chaintest.Script, from time.Duration) uint64 { return pacedHead - uint64(from/c.Pace) }
	for _, p := range pacedChains {
		for name, c := range map[string]struct {
			mined   time.Duration // before the head
			named   time.Duration // distance of the job's block to the head; 0: no block
			headAge time.Duration
			want    func(Standing, error) bool
		}{
			"mined 23 hours ago":   {23 * time.Hour, 0, 0, isFound},
			"mined 25 hours ago":   {25 * time.Hour, 0, 0, isRefused("transactionHash")},
			"moved by 9 minutes":   {2 * time.Hour, 2*time.Hour + 9*time.Minute, 0, isFound},
			"moved back 9 minutes": {2 * time.Hour, 2*time.Hour - 9*time.Minute, 0, isFound},
			"moved by 11 minutes":  {2 * time.Hour, 2*time.Hour + 11*time.Minute, 0, isRefused("transactionHash")},
			"55 minutes ahead":     {time.Hour, -55 * time.Minute, 0, func(s Standing, err error) bool { return err == nil && s.Pending }},
			"65 minutes ahead":     {time.Hour, -65 * time.Minute, 0, isRefused("blockNumber")},
			"65 minutes ahead of an old head": {time.Hour, -65 * time.Minute, 3 * time.Minute, func(s Standing, err error) bool {
				if p.chain == 4663 { // this chain makes blocks only for transactions
					return err == nil && s.Pending && s.Undated
				}
				return as[*node.UnavailableError](err)
			}},
		} {
			t.Run(fmt.Sprintf("%s, %s", p.pace, name), func(t *testing.T) {
				t.Parallel()
				server, j := pacedLog(t, p.chain, p.pace, c.mined)
				server.HeadAt = server.HeadAt.Add(-c.headAge)
				if c.named != 0 {
					j.BlockNumber = number(server, c.named)
				}
				client := newScripted(t, server, 0)
				client.logRange = day
				if got, err := client.Check(t.Context(), j, VerifyReceipt); !c.want(got, err) {
					t.Errorf("%+v, %v", got, err)
				}
			})
		}
	}
}

func isFound(s Standing, err error) bool { return err == nil && s.Found && s.Confirmed }

func isRefused(field string) func(Standing, error) bool {
	return func(s Standing, err error) bool { return err == nil && !s.Found && s.Disagrees == field }
}

// TestConfirmationsAreDurations: an event is confirmed when the chain has made as many blocks as fit into the duration.
// The wait for missing blocks is the time that the chain needs for them.
func TestConfirmationsAreDurations(t *testing.T) {
	t.Parallel()
	for _, p := range pacedChains {
		t.Run(p.pace.String(), func(t *testing.T) {
			t.Parallel()
			const depth = 60 * time.Second
			needed := uint64((depth + p.pace - 1) / p.pace)
			for missing := range uint64(4) {
				server, j := pacedLog(t, p.chain, p.pace, time.Duration(needed-missing)*p.pace)
				j.BlockNumber = pacedHead - needed + missing
				client := newScripted(t, server, 0)
				client.confirmations = erc8004.Depth{Time: depth}
				client.known.Quiet = false
				got, err := client.Check(t.Context(), j, VerifyReceipt)
				// Block timestamps are in seconds, so the measured block time has an error of up to one percent.
				want, slack := time.Duration(missing)*p.pace, p.pace*time.Duration(1+needed/50)
				if err != nil || !got.Found || missing == 0 && p.pace >= 2*time.Second && !got.Confirmed || (got.Wait-want).Abs() > slack {
					t.Errorf("%d missing: %+v, %v", missing, got, err)
				}
			}
		})
	}
}

// TestConfirmedByAge: some chains make blocks only for transactions. There an event needs no later block once it is
// older than the confirmation time.
func TestConfirmedByAge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		chain uint64
		age   time.Duration
		want  bool
	}{
		"quiet and old enough": {42161, 10 * time.Second, true},
		"quiet and too young":  {42161, 0, false},
		"not quiet":            {8453, 10 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, j := pacedLog(t, c.chain, 200*time.Millisecond, 0)
			j.BlockNumber, server.HeadAt = pacedHead, server.HeadAt.Add(-c.age)
			client := newScripted(t, server, 0)
			client.confirmations = erc8004.Depth{Time: 6 * time.Second}
			if got, err := client.Check(t.Context(), j, VerifyReceipt); err != nil || !got.Found || got.Confirmed != c.want {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestConfirmedByTag: the block that nodes call safe or finalized confirms an event. A chain without these tags uses
// its default.
func TestConfirmedByTag(t *testing.T) {
	t.Parallel()
	const base, skale = 8453, 1187947933
	above, below := map[string]uint64{"safe": pacedHead - 100, "finalized": pacedHead - 900}, map[string]uint64{"safe": pacedHead - 900}
	for name, c := range map[string]struct {
		chain  uint64
		tag    string
		verify Verify
		tags   map[string]uint64
		want   Standing // only Confirmed, ConfirmedIn and Unnamed
	}{
		"safe":                        {base, "safe", VerifyReceipt, above, Standing{Confirmed: true}},
		"not safe yet":                {base, "safe", VerifyReceipt, below, Standing{ConfirmedIn: 400}},
		"safe and not final":          {base, "safe", VerifyFinalized, above, Standing{ConfirmedIn: 400}},
		"finalized":                   {base, "finalized", VerifyReceipt, map[string]uint64{"finalized": pacedHead}, Standing{Confirmed: true}},
		"final":                       {base, "safe", VerifyFinalized, map[string]uint64{"finalized": pacedHead - 500}, Standing{Confirmed: true}},
		"the nodes name none":         {base, "finalized", VerifyReceipt, below, Standing{ConfirmedIn: pacedHead - 500, Unnamed: "finalized"}},
		"a chain that has no tags":    {skale, "", VerifyFinalized, map[string]uint64{}, Standing{Confirmed: true}},
		"no tags, safe is configured": {skale, "safe", VerifyReceipt, map[string]uint64{}, Standing{Confirmed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const pace = 200 * time.Millisecond
			server, j := pacedLog(t, c.chain, pace, 500*pace)
			j.BlockNumber, server.Tags = pacedHead-500, c.tags
			client := newScripted(t, server, 0)
			client.confirmations = erc8004.Depth{Tag: c.tag}
			got, err := client.Check(t.Context(), j, c.verify)
			if got := (Standing{Confirmed: got.Confirmed, ConfirmedIn: got.ConfirmedIn, Unnamed: got.Unnamed}); err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// TestCheckRevocationWithoutState: the node does not return the state of the newest confirmed block. If it has dropped
// that state, the feedback counts as revoked. Otherwise a later answer decides.
func TestCheckRevocationWithoutState(t *testing.T) {
	t.Parallel()
	revoked := make([]byte, 4*32) // readFeedback of October 2025
	revoked[len(revoked)-1] = 1
	for message, want := range map[string]func(Standing, error) bool{
		"header not found":                      func(_ Standing, err error) bool { return as[*node.UnavailableError](err) },
		"historical state 0x1 is not available": func(s Standing, err error) bool { return err == nil && s.Revoked },
		"execution reverted":                    func(s Standing, err error) bool { return err == nil && s.Revoked },
	} {
		server, j := pacedLog(t, 10, 2*time.Second, time.Minute)
		j.BlockNumber = pacedHead - 30
		server.Stored, server.State = revoked, &chaintest.Error{Code: -32000, Message: message}
		client := newScripted(t, server, 0)
		client.confirmations = erc8004.Depth{Time: 6 * time.Second}
		if s, err := client.Check(t.Context(), j, VerifyReceipt); !want(s, err) {
			t.Errorf("%s: %+v, %v", message, s, err)
		}
	}
}
