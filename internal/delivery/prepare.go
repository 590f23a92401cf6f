package delivery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/store"
)

// compose picks the agent's tool and fits the arguments to its input schema. A verdict against the agent is given only
// after its tools were listed anew.
func (p *Executor) compose(ctx context.Context, a *attempt) (string, error) {
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
func (p *Executor) recompose(ctx context.Context, a *attempt) (changed bool, err error) {
	tool, sent := a.tool.Name, a.sent
	if err := p.fit(ctx, a, true); err != nil {
		return false, p.noTool(a, err)
	}
	return a.tool.Name != tool || a.sent != sent, nil
}

// noTool gives errNoTool its reason.
func (p *Executor) noTool(a *attempt, err error) error {
	if errors.Is(err, errNoTool) {
		return NoTool(a.job.Kind, a.job.Action.ToolName, p.toolNames(a), a.tools)
	}
	return err
}

func (p *Executor) toolNames(a *attempt) []string {
	if a.listed {
		return ToolNames(a.job.Action.ToolName, p.ToolAliases, &a.server)
	}
	return ToolNames(a.job.Action.ToolName, p.ToolAliases, nil)
}

func (p *Executor) fit(ctx context.Context, a *attempt, fresh bool) error {
	tools, err := p.list(ctx, a, fresh)
	switch {
	case listsNothing(err):
		a.tools = nil
		return errNoTool
	case err != nil:
		return err
	}
	p.learn(a, tools)
	a.tools = tools.Tools
	names := p.toolNames(a)
	tool, ok := mcpcall.Find(tools.Tools, names[0], names[1:])
	if !ok {
		return errNoTool
	}
	f, err := p.fitArguments(ctx, a, tool)
	if err != nil {
		return err
	}
	if err := p.reserveArguments(a, len(f.Sent)); err != nil {
		return err
	}
	a.tool, a.args, a.sent, a.cleaned = tool, f.Arguments, sha256.Sum256(f.Sent), f.Cleaned
	a.out.ToolName, a.out.Arguments = tool.Name, store.KeepSide(f.Sent) // the rest would be held for as long as the agent takes
	return nil
}

// smallArguments are sent without asking, so that honest agents do not wait behind large ones.
const smallArguments = 64 << 10

// reserveArguments takes a share of what may be in flight for arguments of so many bytes of JSON, or puts the attempt off: the agent decides
// how long they are held.
func (p *Executor) reserveArguments(a *attempt, size int) error {
	p.releaseArguments(a) // of those that these replace
	if size <= smallArguments {
		return nil
	}
	// Three times: the arguments, the request that is made of them, and a copy while it is made.
	share := min(3*int64(size), p.MaxArgumentBytes)
	if !p.arguments.TryAcquire(share) {
		return retry.Pause(retry.AgentBusy, 0, fmt.Sprintf("calls with large arguments are in flight, and %d bytes more would need too much memory", size))
	}
	a.reserved = share
	return nil
}

// releaseArguments lets go of the arguments, and gives back their share.
func (p *Executor) releaseArguments(a *attempt) {
	a.args = nil
	if a.reserved > 0 {
		p.arguments.Release(a.reserved)
		a.reserved = 0
	}
}

// fitArguments fits the arguments to a tool when their turn comes. What is decoded at worst is the tool's schema, and the file in every place
// where a template may name it.
func (p *Executor) fitArguments(ctx context.Context, a *attempt, tool mcpcall.Tool) (Fitted, error) {
	places := max(1, bytes.Count(a.job.Action.PayloadTemplate, []byte("{{")))
	release, err := p.Decoding.Acquire(ctx, len(tool.InputSchema)+places*len(a.file.Content))
	if err != nil {
		return Fitted{}, err
	}
	defer release()
	return Fit(a.job, a.file, a.claim.ID.String(), tool)
}

// list asks what the agent offers.
func (p *Executor) list(ctx context.Context, a *attempt, fresh bool) (tools mcpcall.ToolSet, err error) {
	err = p.Authorizer.WithTokenRefresh(ctx, a.auth, func(ctx context.Context, e mcpcall.Endpoint) (err error) {
		ctx, cancel := context.WithTimeout(ctx, p.CallTimeout)
		defer cancel()
		tools, err = p.Caller.Tools(ctx, e, fresh)
		return err
	})
	return tools, err
}

// learn notes what the agent says of itself, for its row. That is written with every delivery, so what it offers goes along only when
// it is news: listed since this process last recorded it.
func (p *Executor) learn(a *attempt, set mcpcall.ToolSet) {
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
