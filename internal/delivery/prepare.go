package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// preparedCall is a call that is ready to be sent.
type preparedCall struct {
	tool      string
	arguments map[string]any
	encoded   json.RawMessage   // the arguments as JSON; nil for a batch, which mcpcall encodes
	sanitized bool              // arguments.Sanitize removed misleading characters from the arguments
	recorded  json.RawMessage   // the arguments as they are stored in the attempt's row
	digest    [sha256.Size]byte // of the tool's name and arguments, to compare two calls
	release   func()            // releases the memory reserved in Executor.arguments; nil: none is reserved

	listing *mcpcall.ToolSet // the latest list of the agent's tools; nil: none
}

// Values of the parameter fresh of listTools: whether the list of the agent's tools may come from the cache.
const (
	cachedTools = false
	freshTools  = true
)

// prepareCall lists the agent's tools at the endpoint at, and returns a call of the first of names that the agent
// offers, with arguments that fit the tool's schema. First it releases the arguments of a.call, the call that was
// prepared before. fresh is cachedTools or freshTools (listTools). If listing or fitting fails, prepareCall returns
// the error and the earlier call without its arguments. If the agent returned a tool list, that call has the new
// list. If the attempt is in the stage connect, that stage ends when the tools are listed.
func (e *Executor) prepareCall(ctx context.Context, a *attempt, at mcpcall.Endpoint, names []string,
	fresh bool) (preparedCall, error) {
	e.releaseArguments(&a.call)
	call := a.call
	listing, err := e.listTools(ctx, at, fresh)
	switch {
	case err != nil && !tools.ListsNothing(err):
		return call, err
	case err == nil:
		call.listing = &listing
	}
	if a.stage.name == "connect" {
		e.beginStage(a, "compose")
	}

	tool, fitted, err := tools.FitCall(ctx, e.Decoding, a.claim.Job, a.file.File, a.claim.ID.String(), names,
		listing)
	if err != nil {
		return call, err
	}
	release, err := e.reserveArguments(a, len(fitted.Sent))
	if err != nil {
		return call, err
	}
	return preparedCall{
		tool: tool.Name, arguments: fitted.Arguments, encoded: fitted.Sent, sanitized: fitted.Cleaned,
		recorded: ledger.KeepSide(fitted.Sent), // shortened, because it stays in memory during the call
		digest:   sha256.Sum256(fmt.Appendf(nil, "%q %s", tool.Name, fitted.Sent)),
		release:  release, listing: listing.Outline(),
	}, nil
}

// mayBeStale reports whether err, an error of prepareCall, may be caused by an outdated tool list.
func mayBeStale(err error) bool {
	var schema *mcpcall.SchemaError
	var failure *outcome.Failure
	return errors.As(err, &schema) ||
		errors.As(err, &failure) && (failure.Reason == outcome.ToolNotFound || failure.Reason == outcome.ToolNotOffered)
}

// listTools lists the agent's tools. With cachedTools, it may return a list from the cache. With freshTools, it asks
// the agent, unless the cached list is very recent (mcpcall.Pool.Tools).
func (e *Executor) listTools(ctx context.Context, at mcpcall.Endpoint, fresh bool) (mcpcall.ToolSet, error) {
	ctx, cancel := mcpcall.WithTimeout(ctx, e.CallTimeout)
	defer cancel()
	return e.Caller.Tools(ctx, at, fresh)
}

// reserveArguments reserves memory for arguments of size bytes of JSON (memory.Budget). If none is free, the error is a
// free wait (agent_busy). release ends the reservation; it is nil for small arguments.
func (e *Executor) reserveArguments(a *attempt, size int) (release func(), err error) {
	// Unbound agents must not use the memory of the endpoint's own agents.
	origin := admission.OriginKey(a.endpoint.Endpoint, a.claim.Agent(), a.endpoint.unbound)
	release, ok := e.arguments.Acquire(size, origin, a.pass.Newcomer())
	if !ok {
		return nil, outcome.Pause(outcome.AgentBusy, 0,
			fmt.Sprintf("calls with large arguments are in flight, and %d bytes more would need too much memory", size))
	}
	return release, nil
}

// releaseArguments sets both forms of the arguments of call to nil and gives back the memory reserved for them.
func (e *Executor) releaseArguments(call *preparedCall) {
	call.arguments, call.encoded = nil, nil
	if call.release != nil {
		call.release()
		call.release = nil
	}
}
