package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
)

var errNoTool = errors.New("the agent offers no such tool")

// maxArguments bounds what is sent, in bytes of JSON: a template may name a large file more than once.
const maxArguments = 8 << 20

// compose picks the agent's tool and fits the arguments to its input schema. A verdict against the agent is given only
// after its tools were listed anew.
func (p *Pipeline) compose(ctx context.Context, a *attempt) (string, error) {
	if err := p.admit(ctx, a); err != nil {
		return "", err
	}
	err := p.fit(ctx, a, false)
	var schema *mcpcall.SchemaError
	if errors.Is(err, errNoTool) || errors.As(err, &schema) {
		err = p.fit(ctx, a, true)
	}
	if err != nil {
		return "", p.noTool(a, err)
	}
	return fmt.Sprintf("%d arguments fitted to %s", len(a.args), a.tool.Name), nil
}

// recompose fits the arguments to what the agent offers now, after it refused them, and tells whether that makes a difference.
func (p *Pipeline) recompose(ctx context.Context, a *attempt) (changed bool, err error) {
	tool, sent := a.tool.Name, a.out.Arguments
	if err := p.fit(ctx, a, true); err != nil {
		return false, p.noTool(a, err)
	}
	return a.tool.Name != tool || !bytes.Equal(a.out.Arguments, sent), nil
}

// noTool gives errNoTool its reason, which depends on the kind (DESIGN §3).
func (p *Pipeline) noTool(a *attempt, err error) error {
	switch {
	case !errors.Is(err, errNoTool):
		return err
	case a.job.Kind == job.KindNewFeedback:
		return retry.Fail(retry.ToolNotFound, fmt.Sprintf("the agent offers no tool %s, nor one of its aliases", a.job.Action.ToolName))
	}
	return retry.Fail(retry.ToolNotOffered, fmt.Sprintf("the agent offers no tool %s", a.job.Action.ToolName))
}

func (p *Pipeline) fit(ctx context.Context, a *attempt, fresh bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.CallTimeout)
	defer cancel()
	tools, err := p.Caller.Tools(ctx, a.target, fresh)
	switch {
	case listsNothing(err):
		return errNoTool
	case err != nil:
		return err
	}
	a.out.Protocol = tools.Protocol
	a.out.ServerInfo = asJSON(tools.Server)
	tool, ok := mcpcall.Find(tools.Tools, a.job.Action.ToolName, mcpcall.Aliases(a.job.Action.ToolName))
	if !ok {
		return errNoTool
	}
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
	clean, cleaned := mcpcall.Clean(fitted)
	sent, err := json.Marshal(clean)
	switch {
	case err != nil:
		return fmt.Errorf("write the arguments as JSON: %w", err)
	case len(sent) > maxArguments:
		return retry.Fail(retry.InvalidJob, fmt.Sprintf("the arguments are %d bytes of JSON; at most %d are sent", len(sent), maxArguments))
	}
	a.tool, a.args, a.cleaned = tool, clean, cleaned
	a.out.ToolName, a.out.Arguments = tool.Name, sent
	return nil
}

// listsNothing: the agent does not even know tools/list.
func listsNothing(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && call.Stage == mcpcall.StageList && retry.NotATool(err)
}
