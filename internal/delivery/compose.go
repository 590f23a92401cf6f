package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/store"
)

var errNoTool = errors.New("the agent offers no such tool")

// maxArguments bounds what is sent, in bytes of JSON: a template may name a large file more than once.
const maxArguments = 8 << 20

// compose picks the agent's tool and fits the arguments to its input schema. A verdict against the agent is given only
// after its tools were listed anew.
func (p *Pipeline) compose(ctx context.Context, a *attempt) (string, error) {
	if len(p.toolNames(a)) == 0 {
		return "", p.noTool(a, errNoTool) // and nobody is asked
	}
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
	case len(p.toolNames(a)) == 0 && a.job.Kind == job.KindNewFeedback:
		return retry.Bar(retry.ToolNotFound, fmt.Sprintf(barred, a.job.Action.ToolName))
	case len(p.toolNames(a)) == 0:
		return retry.Bar(retry.ToolNotOffered, fmt.Sprintf(barred, a.job.Action.ToolName))
	case a.job.Kind == job.KindNewFeedback:
		return retry.Fail(retry.ToolNotFound, fmt.Sprintf("the agent offers no tool %s, nor one of its aliases", a.job.Action.ToolName))
	}
	return retry.Fail(retry.ToolNotOffered, fmt.Sprintf("the agent offers no tool %s", a.job.Action.ToolName))
}

const barred = "the servers file does not list %s among the tools that are called at this agent"

// toolNames are the names under which the job's tool is looked for, the best first; none: the servers file allows none of them.
func (p *Pipeline) toolNames(a *attempt) []string {
	name := a.job.Action.ToolName
	names := slices.Concat([]string{name}, mcpcall.Aliases(name), p.ToolAliases[name])
	if a.listed {
		return a.server.Allows(names)
	}
	return names
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
	p.learn(a, tools)
	names := p.toolNames(a)
	tool, ok := mcpcall.Find(tools.Tools, names[0], names[1:])
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

// learn notes what the agent says of itself, for its row. That is written with every delivery, so what it offers goes along only when
// it is news: listed since this process last recorded it.
func (p *Pipeline) learn(a *attempt, set mcpcall.ToolSet) {
	a.out.Protocol = set.Protocol
	a.out.ServerInfo, a.out.Tools = nil, nil
	if p.told != nil {
		if last, ok := p.told.Get(a.claim.Agent()); ok && last.Equal(set.Listed) {
			return
		}
	}
	a.offered = set.Listed
	tools := make([]store.KnownTool, len(set.Tools))
	for i, t := range set.Tools {
		tools[i] = store.KnownTool{Name: t.Name, Schema: len(t.InputSchema) > 0}
	}
	a.out.Tools = store.ToolList(tools)
	a.out.ServerInfo = asJSON(map[string]string{"name": set.Server.Name, "version": set.Server.Version})
}

// listsNothing: the agent does not even know tools/list.
func listsNothing(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && call.Stage == mcpcall.StageList && retry.NotATool(err)
}
