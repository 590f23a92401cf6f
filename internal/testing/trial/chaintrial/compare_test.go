package chaintrial

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

const testChain = 31337

var testDeployment = erc8004.Deployment{Identity: addressOf(1), Reputation: addressOf(2), Validation: addressOf(3)}

// generate makes blocks and returns their logs as a node would.
func generate(t *testing.T, seed uint64, blocks int) []types.Log {
	t.Helper()
	g := NewGenerator(seed)
	emitters := []common.Address{testDeployment.Identity, testDeployment.Reputation, testDeployment.Validation}
	var logs []types.Log
	for n := range blocks {
		events, err := g.Next(10)
		heraldtest.Must(t, err)
		for i, e := range events {
			logs = append(logs, types.Log{Address: emitters[e.Emitter], Topics: e.Log.Topics, Data: e.Log.Data,
				BlockNumber: uint64(n + 1),
				BlockHash:   common.BigToHash(big.NewInt(int64(n + 1))),
				TxHash:      common.BigToHash(big.NewInt(int64(1000 * (n + 1)))), Index: uint(i)})
		}
	}
	return logs
}

// TestGeneratorMakesEveryForm: the generator makes every followed topic, and as many forms of each as the decoder
// knows.
func TestGeneratorMakesEveryForm(t *testing.T) {
	t.Parallel()
	seen := map[common.Hash]int{}
	logs := generate(t, 1, 300)
	for _, l := range logs {
		seen[l.Topics[0]]++
		if _, err := erc8004.Decode(l); err != nil {
			t.Errorf("a generated log does not decode: %v", err)
		}
	}
	for _, topic := range erc8004.Topics() {
		if seen[topic] == 0 {
			t.Errorf("no event of topic %s in 300 blocks", topic)
		}
	}
	if len(seen) != len(erc8004.Topics()) || len(seen) != len(forms) {
		t.Errorf("%d topics were made of %d forms, the decoder knows %d", len(seen), len(forms), len(erc8004.Topics()))
	}
	wanted, err := Want(logs, testChain, testDeployment, countedNone)
	heraldtest.Must(t, err)
	isRefused := func(w Wanted) bool { return w.Refused != "" }
	made := slices.DeleteFunc(slices.Clone(wanted), isRefused)
	if len(made) == 0 || len(made) == len(wanted) {
		t.Errorf("%d of %d wanted rows are not refused", len(made), len(wanted))
	}
}

// TestGeneratorRepeats: the seed determines every event.
func TestGeneratorRepeats(t *testing.T) {
	t.Parallel()
	one, two, other := fmt.Sprint(generate(t, 7, 50)), fmt.Sprint(generate(t, 7, 50)), fmt.Sprint(generate(t, 8, 50))
	if one != two || one == other {
		t.Errorf("the same seed is the same: %t, another one is other: %t", one == two, one != other)
	}
}

// TestGeneratorReorg: after reorgs, no key occurs twice on the branch, and indexes of removed feedback occur again with
// other content.
func TestGeneratorReorg(t *testing.T) {
	t.Parallel()
	g := NewGenerator(3)
	content := map[place]string{} // of all feedback, including removed feedback
	reused := 0
	for n := range 400 {
		block, err := g.Next(10)
		heraldtest.Must(t, err)
		for _, e := range block {
			if e.gives == nil {
				continue
			}
			text := fmt.Sprint(e.Log)
			if before := content[*e.gives]; before != "" && before != text {
				reused++
			}
			content[*e.gives] = text
		}
		switch {
		case n%20 == 19:
			g.Drop(10)
		case n%20 == 9:
			g.Fold(5)
		}
	}
	given, revoked := map[place]bool{}, map[place]bool{}
	for _, block := range g.blocks {
		for _, e := range block {
			if e.gives != nil {
				if given[*e.gives] {
					t.Errorf("feedback %+v is on the branch twice", *e.gives)
				}
				given[*e.gives] = true
			}
			if e.revokes != nil {
				if revoked[*e.revokes] {
					t.Errorf("feedback %+v is revoked twice", *e.revokes)
				}
				revoked[*e.revokes] = true
			}
		}
	}
	if len(given) == 0 || len(revoked) == 0 || reused == 0 {
		t.Errorf("%d given, %d revoked, %d indexes given anew", len(given), len(revoked), reused)
	}
}

// keep returns the rows that Herald must have.
func keep(wanted []Wanted) []Row {
	var rows []Row
	for i, w := range wanted {
		r := Row{ID: fmt.Sprint("row ", i), Key: w.Key, Status: "queued", Job: w.Job, OrderSeq: w.Job.OrderSeq()}
		if w.Refused != "" {
			r.Key, r.Status, r.Reason = fmt.Sprint("invalid:", i), "rejected", "invalid_job"
		}
		rows = append(rows, r)
	}
	return rows
}

// TestCompareFinds: every kind of difference between chain and rows is found once, and reported as that kind.
func TestCompareFinds(t *testing.T) {
	t.Parallel()
	wanted, err := Want(generate(t, 5, 100), testChain, testDeployment, countedNone)
	heraldtest.Must(t, err)
	first := slices.IndexFunc(wanted, func(w Wanted) bool { return w.Refused == "" && w.Job.Kind == job.KindNewFeedback })
	refused := slices.IndexFunc(wanted, func(w Wanted) bool { return w.Refused != "" })
	const other, left = "eip155:31337:0x02/1/0x03/8", "eip155:31337:0x02/1/0x03/9" // left was on a removed branch
	gone := map[string]bool{left + "#NewFeedback": true, left + "#Retraction@0x77": true}
	add := func(rows ...Row) func([]Row) []Row { return func(all []Row) []Row { return append(all, rows...) } }
	row := func(key, status, reason string) func([]Row) []Row {
		return add(Row{ID: "extra", Key: key, Status: status, Reason: reason})
	}
	remove := func(i int) func([]Row) []Row { return func(all []Row) []Row { return slices.Delete(all, i, i+1) } }
	change := func(f func(*Row)) func([]Row) []Row {
		return func(all []Row) []Row { f(&all[first]); return all }
	}
	called := Row{ID: "called", Key: left + "#NewFeedback", Status: "delivered", Called: true, Job: job.Job{Kind: job.KindNewFeedback}}
	displaced := called
	displaced.Key += "~called"
	retraction := Row{ID: "retracts", Key: left + "#Retraction@0x77", Status: "queued",
		Job: job.Job{Kind: job.KindFeedbackRevoked, Reason: job.RevokedByReorg, Retracts: "called"}}
	skipped, unfounded := retraction, retraction
	skipped.Status, skipped.Reason = "skipped", "mined_again"
	unfounded.Key = left + "#Retraction@0x78"
	const missing, tooMany, misplaced, wrong = "missing", "too many", "misplaced", "wrong"
	for name, c := range map[string]struct {
		change func([]Row) []Row
		want   string // the kind of the difference; "": there is none
	}{
		"nothing":                            {add(), ""},
		"no row":                             {remove(first), missing},
		"one more rejected row":              {row("invalid:77", "rejected", "invalid_job"), tooMany},
		"no rejected row":                    {remove(refused), missing},
		"taken back":                         {change(func(r *Row) { r.Status, r.Reason = "cancelled", "reorg" }), missing},
		"rejected":                           {change(func(r *Row) { r.Status = "rejected" }), wrong},
		"other block":                        {change(func(r *Row) { r.Job.BlockNumber++ }), misplaced},
		"other block's hash":                 {change(func(r *Row) { r.Job.BlockHash[0]++ }), misplaced},
		"other transaction":                  {change(func(r *Row) { r.Job.TransactionHash[0]++ }), misplaced},
		"other log":                          {change(func(r *Row) { n := *r.Job.LogIndex + 1; r.Job.LogIndex = &n }), misplaced},
		"other content":                      {change(func(r *Row) { r.Job.Tag2 += "!" }), wrong},
		"other order":                        {change(func(r *Row) { r.OrderSeq++ }), wrong},
		"never on a chain":                   {row(other+"#NewFeedback", "queued", ""), tooMany},
		"cancelled, unknown":                 {row(other+"#NewFeedback", "cancelled", "reorg"), tooMany},
		"gone, not ended":                    {row(left+"#NewFeedback", "queued", ""), tooMany},
		"gone":                               {row(left+"#NewFeedback", "cancelled", "reorg"), ""},
		"gone, key given":                    {row(left+"#NewFeedback~an-id", "cancelled", "reorg"), ""},
		"retraction":                         {add(called, retraction), ""},
		"retraction of a block that stays":   {add(called, unfounded), tooMany},
		"key given, not retracted":           {add(displaced), missing},
		"retraction skipped, gone once more": {add(called, skipped), missing},
		"not retracted":                      {add(called), missing},
		"retracts what nobody was told":      {row(left+"#Retraction@0x77", "queued", ""), tooMany},
		"retracts what was claimed and never called":        {row(left+"#Retraction@0x77", "skipped", "never_delivered"), ""},
		"retracts what is mined again and was never called": {row(left+"#Retraction@0x77", "skipped", "mined_again"), ""},
		"retracts from a block that stays":                  {row(left+"#Retraction@0x78", "skipped", "mined_again"), tooMany},
		"retracts once more":                                {row(left+"#Retraction@0x77.2", "skipped", "mined_again"), ""},
		"retracts nothing":                                  {row(other+"#Retraction@0x77", "queued", ""), tooMany},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := Compare(wanted, maps.Clone(gone), c.change(keep(wanted)))
			got := map[string]int{missing: len(f.Missing), tooMany: len(f.TooMany), misplaced: len(f.Misplaced), wrong: len(f.Wrong)}
			want := map[string]int{missing: 0, tooMany: 0, misplaced: 0, wrong: 0}
			if c.want != "" {
				want[c.want] = 1
			}
			heraldtest.Equal(t, fmt.Sprintf("the differences %q", f.Faults()), got, want)
		})
	}
}

// TestCompareFindsRefusedEvents: a refused event has a rejected row with its key, or the row of a removed event with it.
func TestCompareFindsRefusedEvents(t *testing.T) {
	t.Parallel()
	const key = "eip155:31337:0x02/1/0x03/9#NewFeedback"
	wanted := []Wanted{{Key: key, Position: Position{Block: 7, LogIndex: 1}, Refused: "score: must be 0 to 100"}}
	for name, c := range map[string]struct {
		gone              bool
		rows              []Row
		rejected, missing int
		tooMany           int
	}{
		"rejected":                  {rows: []Row{{ID: "r", Key: key, Status: "rejected", Reason: "invalid_job"}}, rejected: 1},
		"after a removed event":     {gone: true, rows: []Row{{ID: "r", Key: key, Status: "cancelled", Reason: "reorg"}}, rejected: 1},
		"the removed event is open": {gone: true, rows: []Row{{ID: "r", Key: key, Status: "queued"}}, rejected: 1, tooMany: 1},
		"no row":                    {missing: 1},
		"cancelled, never removed":  {rows: []Row{{ID: "r", Key: key, Status: "cancelled", Reason: "reorg"}}, missing: 1, tooMany: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := Compare(wanted, map[string]bool{key: c.gone}, c.rows)
			if f.Rejected != c.rejected || len(f.Missing) != c.missing || len(f.TooMany) != c.tooMany {
				t.Errorf("rejected %d, missing and too many: %q", f.Rejected, f.Faults())
			}
		})
	}
}
