package delivery

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
)

var errNoTool = errors.New("the agent offers no such tool")

// compose picks the agent's tool and fits the arguments to its input schema. A verdict against the agent is given only
// after its tools were listed anew.
func (p *Pipeline) compose(ctx context.Context, a *attempt) (string, error) {
	err := p.fit(ctx, a, false)
	var schema *mcpcall.SchemaError
	if errors.Is(err, errNoTool) || errors.As(err, &schema) {
		err = p.fit(ctx, a, true)
	}
	switch {
	case errors.Is(err, errNoTool) && a.job.Kind != job.KindNewFeedback:
		return "", retry.Fail(retry.ToolNotOffered, fmt.Sprintf("the agent offers no tool %s", a.job.Action.ToolName))
	case errors.Is(err, errNoTool):
		return "", retry.Fail(retry.ToolNotFound, fmt.Sprintf("the agent offers no tool %s, nor one of its aliases", a.job.Action.ToolName))
	case err != nil:
		return "", err
	}
	a.out.ToolName = a.tool.Name
	a.out.Arguments = mustJSON(a.args)
	return fmt.Sprintf("%d arguments fitted to %s", len(a.args), a.tool.Name), nil
}

func (p *Pipeline) fit(ctx context.Context, a *attempt, fresh bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.CallTimeout)
	defer cancel()
	tools, err := p.Caller.Tools(ctx, a.target, fresh)
	if err != nil {
		return err
	}
	a.out.Protocol = tools.Protocol
	a.out.ServerInfo = mustJSON(tools.Server)
	tool, ok := mcpcall.Find(tools.Tools, a.job.Action.ToolName, mcpcall.Aliases(a.job.Action.ToolName))
	if !ok {
		return errNoTool
	}
	a.tool = tool
	args := a.job.Arguments(a.file, a.claim.ID.String())
	if len(a.job.Action.PayloadTemplate) > 0 {
		if args, err = a.job.RenderTemplate(args); err != nil {
			return retry.Fail(retry.InvalidJob, "action.payloadTemplate: "+err.Error())
		}
		args["deliveryId"] = a.claim.ID.String()
	}
	fitted, err := mcpcall.Fit(tool, args)
	if err != nil {
		return err
	}
	a.args, a.cleaned = mcpcall.Clean(fitted)
	return nil
}
