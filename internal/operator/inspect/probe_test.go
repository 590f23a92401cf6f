package inspect

import (
	"context"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// flushed is a function that implements Flush.
type flushed func(context.Context)

func (f flushed) Flush(ctx context.Context) { f(ctx) }

// TestProbeFlushes checks that a probe that renewed a token stores it before it ends, even if it is interrupted.
func TestProbeFlushes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var did []string
	flushThenClose(ctx, flushed(func(ctx context.Context) {
		if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
			t.Error("without end, or at its end")
		}
		did = append(did, "flush")
	}), func() { did = append(did, "close") })
	heraldtest.Equal(t, "the order", did, []string{"flush", "close"})
}

// TestSamplesAreJobs checks that the sample of every kind has all arguments of its tool, and that each has a value
// except for empty tags and endpoints.
func TestSamplesAreJobs(t *testing.T) {
	t.Parallel()
	g := erc8004.Agent{ChainID: 99, Registry: "0x00000000000000000000000000000000000000aa", ID: "7"}
	for _, kind := range []job.Kind{job.KindNewFeedback, job.KindFeedbackRevoked, job.KindResponseAppended, job.KindValidationResponse} {
		s, err := newSample(kind, g, "", job.Limits{})
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		list := s.compareArguments(nil)
		if len(list) != len(job.ArgumentNames(kind)) {
			t.Errorf("%s: %v", kind, list)
		}
		for _, a := range list {
			empty := string(a.Sample) == `""` && (a.Name == "tag2" || a.Name == "endpoint")
			isClients := a.Name == "retracts" && string(a.Sample) == "null" // null for the client's own revocation, which names no delivery
			if len(a.Sample) == 0 || string(a.Sample) == "null" && !isClients || string(a.Sample) == `""` && !empty {
				t.Errorf("%s: %s is %s", kind, a.Name, a.Sample)
			}
		}
	}
}
