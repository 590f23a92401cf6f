package doctor

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/embedded"
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
