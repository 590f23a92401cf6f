package chaintrial

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/trial"
)

// TestJudgeCalls: a call is justified if, shortly before it, the event was on the chain and had enough confirmations.
func TestJudgeCalls(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	hash, other := common.Hash{1}, common.Hash{2}
	content := func(tag string) job.Job { return job.Job{Kind: job.KindNewFeedback, Tag1: tag} }
	const key, retraction = "eip155:1:0x/1/0x/1#NewFeedback", "eip155:1:0x/1/0x/1#Retraction@0x01"
	life := func(tag string, block uint64, hash common.Hash, from, until int) Life {
		l := Life{Wanted: Wanted{Key: key, Job: content(tag), Position: Position{Block: block, BlockHash: hash}},
			From: at(from)}
		if until > 0 {
			l.Until = at(until)
		}
		return l
	}
	// The head is 10 at 0 s, 11 at 1 s and so on. The event "a" is in block 20 from 10 s on, and removed at 20 s.
	h := History{Lives: []Life{life("a", 20, hash, 10, 20), life("b", 31, other, 21, 0)}}
	for n := range 60 {
		h.Heights = append(h.Heights, Height{at(n), uint64(10 + n)})
	}
	id := uuid.UUID{9}
	for name, c := range map[string]struct {
		row    Row
		called int
		faults int
	}{
		"deep enough":              {Row{Key: key, Job: content("a")}, 13, 0},
		"not deep enough":          {Row{Key: key, Job: content("a")}, 12, 1},
		"before it was there":      {Row{Key: key, Job: content("a")}, 9, 1},
		"gone a moment before":     {Row{Key: key, Job: content("a")}, 21, 0},
		"gone for long":            {Row{Key: key, Job: content("a")}, 23, 1},
		"another in its place":     {Row{Key: key, Job: content("b")}, 24, 0},
		"not yet in its place":     {Row{Key: key, Job: content("b")}, 22, 1},
		"it gave its key":          {Row{Key: key + "~9", Job: content("a")}, 30, 1},
		"retracted while there":    {Row{Key: retraction, Job: job.Job{BlockHash: hash}}, 15, 1},
		"retracted while going":    {Row{Key: retraction, Job: job.Job{BlockHash: hash}}, 21, 0},
		"retracted from elsewhere": {Row{Key: retraction, Job: job.Job{BlockHash: common.Hash{3}}}, 15, 0},
		"never accepted":           {Row{Key: key, ID: "other", Job: content("a")}, 13, 1},
	} {
		if c.row.ID == "" {
			c.row.ID = id.String()
		}
		got := h.JudgeCalls(trial.Calls{{Delivery: id, Begun: at(c.called)}}, []Row{c.row}, 3, 2*time.Second)
		if len(got) != c.faults {
			t.Errorf("%s: %q", name, got)
		}
	}
}
