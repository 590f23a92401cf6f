package follower

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestStallIsReported: a follower that reads no block for a minute reports it once, with the node's own error text. It
// reports again when it can read. The cases are nodes that refuse every request, and a node whose head stays low.
func TestStallIsReported(t *testing.T) {
	t.Parallel()
	refuses := chaintest.RefuseStatus(200, "", `{"error":{"code":-32090,"message":"no credits left"}}`)
	for name, c := range map[string]struct {
		spoil func(http.ResponseWriter, *http.Request) bool
		why   string
	}{
		"it refuses all":   {func(rw http.ResponseWriter, r *http.Request) bool { refuses(rw, r); return true }, "error -32090: no credits left"},
		"it refuses 429":   {chaintest.Refuse(""), "429 Too Many Requests"},
		"it is cut off":    {chaintest.Failures()["nothing"], "closed the connection without an answer"},
		"its head is down": {nil, "was read before"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newChainStub(t, 2*time.Second)
				type report struct {
					At  time.Duration
					Why error
				}
				began := time.Now()
				var reports []report
				f, _ := newStubFollower(t, newStubReader(t, true, s), Config{From: s.head(),
					Stalled: func(_ context.Context, why error, _ time.Time) {
						reports = append(reports, report{time.Since(began), why})
					}})
				f.lowHeadTimeout = 10 * time.Minute
				followFor(t, f, 10*time.Second)
				if c.spoil == nil {
					s.behind = 1000
				} else {
					s.Set(c.spoil, s.answerCall)
				}
				followFor(t, f, 3*time.Minute)
				if len(reports) != 1 || reports[0].Why == nil || !strings.Contains(reports[0].Why.Error(), c.why) ||
					reports[0].At < time.Minute || reports[0].At > 2*time.Minute {
					t.Fatalf("%+v", reports)
				}
				s.behind = 0
				s.Set(nil, s.answerCall)
				followFor(t, f, 3*time.Minute)
				if len(reports) != 2 || reports[1].Why != nil {
					t.Errorf("%+v", reports)
				}
			})
		})
	}
}

// TestQuietChainIsNoStall: a follower of a chain that makes no blocks does not report a stall.
func TestQuietChainIsNoStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 6*time.Hour)
		f, _ := newStubFollower(t, newStubReader(t, false, s), Config{From: s.head(),
			Stalled: func(_ context.Context, why error, _ time.Time) { t.Error(why) }})
		followFor(t, f, 10*time.Minute)
	})
}

// TestFlappingNodeIsLoggedSeldom: a node that refuses every other reading of logs causes two lines a minute.
func TestFlappingNodeIsLoggedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		f, _ := newStubFollower(t, newStubReader(t, true, s), Config{From: s.head()})
		log := &heraldtest.Log{}
		f.log = log.Logger(slog.LevelInfo)
		readings := 0
		s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
			if method == "eth_getLogs" {
				if readings++; readings%2 == 0 {
					return nil, chaintest.Error{Code: -32000, Message: "no"}
				}
			}
			return s.answerCall(method, params)
		})
		followFor(t, f, 9*time.Minute+30*time.Second) // to the middle between two lines
		if warnings, lines := log.Count("waiting for the node"), log.Count("\n"); readings < 200 || warnings < 5 || lines > 22 {
			t.Errorf("%d readings, %d warnings, %d lines", readings, warnings, lines)
		}
	})
}

// TestFlappingBranchIsLoggedSeldom: several nodes answer at one address, and each request reaches a node on another
// branch. The follower logs that once a minute.
func TestFlappingBranchIsLoggedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		f, _ := newStubFollower(t, newStubReader(t, true, s), Config{From: s.head()})
		log := &heraldtest.Log{}
		f.log = log.Logger(slog.LevelInfo)
		followFor(t, f, 10*time.Second)
		next := f.next
		s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
			if len(params) == 0 {
				return s.answerCall(method, params)
			}
			switch {
			case method == "eth_getLogs":
				s.fork = next
			case string(params[0]) == `"latest"`:
				s.fork = 0
			}
			return s.answerCall(method, params)
		})
		followFor(t, f, 9*time.Minute+30*time.Second) // to the middle between two lines
		if lines := log.Count("reading again"); lines < 5 || lines > 10 {
			t.Errorf("%d lines", lines)
		}
	})
}

// TestInventedBlocksAreLeft: while the first node is away, the second one returns invented blocks above the chain's head.
// When the first node answers again, the follower reads its blocks, although only the second node has the last block
// that was handed over.
func TestInventedBlocksAreLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newChainStub(t, 2*time.Second), newChainStub(t, 2*time.Second)
		second.fork = second.head() + 1
		second.behind -= 1000 // it is ahead
		f, got := newStubFollower(t, newStubReader(t, true, first, second), Config{From: first.head()})
		first.Set(chaintest.Failures()["nothing"], first.answerCall)
		followFor(t, f, 20*time.Second)
		if f.next <= first.head()+900 {
			t.Fatalf("the follower has read %d blocks above the head", f.next-first.head())
		}
		first.Set(nil, first.answerCall)
		followFor(t, f, 5*time.Minute)
		if last := f.done[len(f.done)-1]; first.head()-last.Number > 2 || last.Hash != first.hashOf(last.Number) || got.rewinds != 1 {
			t.Errorf("block %d of %d was read last, %d rewinds", last.Number, first.head(), got.rewinds)
		}
	})
}
