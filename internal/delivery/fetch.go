package delivery

import (
	"context"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/delivery/content"
	"github.com/agentherald/herald/internal/job"
)

// fetchFile fetches the file of the attempt's event (content.Reader.Fetch), and charges its duration to the agent's
// effort budget. Files may use only a part of the budget. If that part is used up, the error is a free wait
// (over_budget).
func (e *Executor) fetchFile(ctx context.Context, a *attempt) (content.File, error) {
	if !content.IsWanted(a.claim.Job) {
		return e.files.Fetch(ctx, a.claim, a.pass)
	}
	what := effort.Fetches
	if a.claim.Job.Kind == job.KindResponseAppended {
		what = effort.ResponseFetches
	}
	if err := a.pass.CheckFiles(what); err != nil {
		return content.File{}, err
	}
	began := e.Now()
	defer func() { a.pass.Spend(what, 1, e.Now().Sub(began)) }()
	return e.files.Fetch(ctx, a.claim, a.pass)
}
