package doctor

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestCountBreakers checks that the doctor asks the running worker for its open breakers.
func TestCountBreakers(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(nil)
	heraldtest.Must(t, err)
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, map[string]string{"/v1/stats": `{"openBreakers": 2}`}[r.URL.Path])
	}))
	defer worker.Close()
	d := &doctor{Operator: operator.New(operator.Config{Settings: cfg}), worker: worker.Listener.Addr().String()}
	heraldtest.Equal(t, "open breakers", d.countBreakers(t.Context()), 2)
}

// TestJudgePrograms checks that a missing program is only a warning if a start fetches or replaces it.
func TestJudgePrograms(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(nil)
	heraldtest.Must(t, err)
	o := operator.New(operator.Config{Settings: cfg})
	for _, c := range []struct {
		found embedded.Programs
		want  []Finding
	}{
		{embedded.Programs{NoPostgres: &embedded.NoBinariesError{}, NoRedis: fmt.Errorf("%w (x is old)", embedded.ErrNoRedis)}, []Finding{
			{Mark: MarkWarn, Text: "no usable Postgres was found on this machine"},
			{Mark: MarkWarn, Text: "`worker embedded fetch` does that now"},
			{Mark: MarkWarn, Text: "no usable redis-server or valkey-server on this machine (x is old): the queue would run inside the worker (miniredis)"},
		}},
		{embedded.Programs{NoPostgres: &embedded.AccountError{Problem: "nobody may"}, Redis: "redis-server 7"}, []Finding{
			{Mark: MarkFail, Text: "nobody may"}, {Mark: MarkOK, Text: "redis-server 7"},
		}},
	} {
		findings := (&doctor{Operator: o}).judgePrograms(c.found)
		for _, want := range c.want {
			if !slices.ContainsFunc(findings, func(f Finding) bool {
				return f.Mark == want.Mark && f.OK == (want.Mark != MarkFail) && strings.Contains(f.Text, want.Text)
			}) {
				t.Errorf("no %s of programs says %q: %+v", want.Mark, want.Text, findings)
			}
		}
	}
}

// TestJudgeFollowed checks that a finding about a stalled chain contains the node's error, and that a node that omitted
// logs is identified by its number.
func TestJudgeFollowed(t *testing.T) {
	t.Parallel()
	since, lag := time.Now().Add(-time.Hour), 0.0
	blocks := uint64(0)
	for name, c := range map[string]struct {
		state operator.CursorState
		want  string
	}{
		"read": {operator.CursorState{Next: 8, LagTime: &lag, LagBlocks: &blocks}, "is read up to block 7"},
		"not read": {operator.CursorState{StalledSince: &since, StalledWhy: "the node answered error -32014: no"},
			"the node answered error -32014: no"},
		"given up": {operator.CursorState{StalledSince: &since, StalledWhy: "no", LagTime: &lag, LagBlocks: &blocks},
			"the reader's last error: no. If that is repaired, check that a worker with HERALD_WATCH, or `enqueue watch 8453`, runs"},
		"an omission": {operator.CursorState{LagTime: &lag, LagBlocks: &blocks, Checks: &follower.Checks{
			Omission: &follower.Omission{Node: 2, Block: 77, Logs: 1, At: since}}}, "node 2 of RPC_URL_8453 left out 1 log of block 77"},
	} {
		found := judgeFollowed(operator.ChainState{ChainID: 8453, Cursors: []operator.CursorState{c.state}})
		if len(found) != 1 || !strings.Contains(found[0].Text, c.want) {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

// TestCompareClocks checks which clock is named, from the differences between the clocks and this machine's.
func TestCompareClocks(t *testing.T) {
	t.Parallel()
	for says, clocks := range map[string][]clock{
		"":   {{"Postgres", 2 * time.Second}, {"Redis", -2 * time.Second}},
		"\n": nil,
		"the clock of Redis is wrong: it is 6s behind those of this machine and Postgres. ":                   {{"Postgres", time.Second}, {"Redis", -6 * time.Second}},
		"the clock of this machine is wrong: it is 3m0s behind those of Redis and Postgres. ":                 {{"Postgres", 183 * time.Second}, {"Redis", 3 * time.Minute}},
		"the clock of this machine is wrong: it is 1h0m0s ahead of those of Postgres and Redis. ":             {{"Postgres", -time.Hour}, {"Redis", -time.Hour}},
		"a clock is wrong: that of Postgres is 1m0s ahead of that of this machine. ":                          {{"Postgres", time.Minute}},
		"a clock is wrong: that of Redis is 6s ahead of that of this machine. ":                               {{"Postgres", 4 * time.Second}, {"Redis", 6 * time.Second}},
		"a clock is wrong: that of Redis is 2m0s ahead of that of Postgres. Correct it, and let all machines": {{"Postgres", -time.Minute}, {"Redis", time.Minute}},
	} {
		got := (&doctor{clocks: clocks}).compareClocks(t.Context())
		if strings.TrimSpace(says) == "" {
			heraldtest.Equal(t, "findings", len(got), 0)
			continue
		}
		if len(got) != 1 || !strings.HasPrefix(got[0].Text, says) {
			t.Errorf("%+v, want %q", got, says)
		}
	}
}
