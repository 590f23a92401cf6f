package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// preparedCall is a call that is ready to be sent.
type preparedCall struct {
	tool      string
	arguments map[string]any
	sanitized bool              // misleading characters were removed
	recorded  json.RawMessage   // the arguments in the form for the attempt's row
	digest    [sha256.Size]byte // of the tool's name and arguments, to compare two calls
	release   func()            // releases the memory reserved in Executor.arguments; nil: none is reserved

	listing *mcpcall.ToolSet // the latest list of the agent's tools; nil: none
}

// Values of listTools' argument fresh.
const (
	cachedTools = false
	freshTools  = true
)

// prepareCall lists the agent's tools and returns a call of the first of names that the agent offers, with arguments
// that fit its schema. fresh is cachedTools or freshTools. It first releases the arguments of a.call. With an error, it
// returns a.call without arguments, but with the new list of tools if the agent returned one.
func (e *Executor) prepareCall(ctx context.Context, a *attempt, names []string, fresh bool) (preparedCall, error) {
	e.releaseArguments(&a.call)
	call := a.call
	listing, err := e.listTools(ctx, a, fresh)
	switch {
	case err != nil && !ListsNothing(err):
		return call, err
	case err == nil:
		call.listing = &listing
	}

	tool, fitted, err := FitCall(ctx, e.Decoding, a.claim.Job, a.file.File, a.claim.ID.String(), names, listing.Tools)
	if err != nil {
		return call, err
	}
	release, err := e.reserveArguments(a, len(fitted.Sent))
	if err != nil {
		return call, err
	}
	return preparedCall{
		tool: tool.Name, arguments: fitted.Arguments, sanitized: fitted.Cleaned,
		recorded: store.KeepSide(fitted.Sent), // all arguments would stay in memory during the call
		digest:   sha256.Sum256(fmt.Appendf(nil, "%q %s", tool.Name, fitted.Sent)),
		release:  release, listing: listing.Outline(),
	}, nil
}

// mayBeStale reports whether prepareCall may have failed because its list of the agent's tools was outdated.
func mayBeStale(err error) bool {
	var schema *mcpcall.SchemaError
	var failure *retry.Failure
	return errors.As(err, &schema) ||
		errors.As(err, &failure) && (failure.Reason == reason.ToolNotFound || failure.Reason == reason.ToolNotOffered)
}

// listTools lists the agent's tools. fresh is cachedTools (a recent list from the cache suffices) or freshTools (the
// agent is asked again, unless the list is very recent: mcpcall.Pool.Tools).
func (e *Executor) listTools(ctx context.Context, a *attempt, fresh bool) (listing mcpcall.ToolSet, err error) {
	err = e.Authorizer.WithTokenRefresh(ctx, a.auth, func(ctx context.Context, endpoint mcpcall.Endpoint) (err error) {
		ctx, cancel := mcpcall.WithTimeout(ctx, e.CallTimeout)
		defer cancel()
		listing, err = e.Caller.Tools(ctx, endpoint, fresh)
		return err
	})
	return listing, err
}

// ListsNothing reports whether err means that the agent does not know the method tools/list, so that it has no tools.
func ListsNothing(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && call.Stage == mcpcall.StageList && retry.NotATool(err)
}

// smallArguments is the largest size, in bytes of JSON, of arguments that need no reserved memory, so that small calls
// do not wait for large ones.
const smallArguments = 64 << 10

// argumentBudget bounds the bytes of memory for large arguments of calls in flight: in total (most), for newcomers
// (half of most), and per origin (a quarter of most). A bound applies only to the second and later calls that it
// counts: a single call may exceed it.
type argumentBudget struct {
	most int64

	mu   sync.Mutex
	held map[string]int64 // bytes in total, for newcomers, and per origin
}

// acquire reserves memory for a call at an origin until the returned release is called. It returns nil, and reserves
// nothing, if a bound is reached.
func (b *argumentBudget) acquire(bytes int64, origin string, newcomer bool) (release func()) {
	const all, newcomers = "all", "newcomers"
	bounds := map[string]int64{all: b.most, "at " + origin: b.most / 4}
	if newcomer {
		bounds[newcomers] = b.most / 2
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	for of, most := range bounds {
		if held := b.held[of]; held > 0 && held+bytes > most {
			return nil
		}
	}
	for of := range bounds {
		b.held[of] += bytes
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for of := range bounds {
			if b.held[of] -= bytes; b.held[of] == 0 {
				delete(b.held, of)
			}
		}
	}
}

// reserveArguments reserves memory for arguments of size bytes of JSON, three times their size, until release is
// called. release is nil for arguments of at most smallArguments bytes. If a bound is reached, the error is a free
// wait. The memory is bounded because the agent decides how long its call, and thus the memory, lasts.
func (e *Executor) reserveArguments(a *attempt, size int) (release func(), err error) {
	if size <= smallArguments {
		return nil, nil
	}
	// The arguments, the request made of them, and a temporary copy.
	share := min(3*int64(size), e.MaxArgumentBytes)
	origin := limitedOrigin(a.endpoint.Endpoint, a.claim.Agent())
	if a.endpoint.unbound { // unbound agents must not use the memory of the endpoint's own agents
		origin = unboundPrefix + origin
	}
	if release = e.arguments.acquire(share, origin, a.slots != nil); release == nil {
		return nil, retry.Pause(reason.AgentBusy, 0,
			fmt.Sprintf("calls with large arguments are in flight, and %d bytes more would need too much memory", size))
	}
	return release, nil
}

// releaseArguments drops a call's arguments and releases their reservation.
func (e *Executor) releaseArguments(call *preparedCall) {
	call.arguments = nil
	if call.release != nil {
		call.release()
		call.release = nil
	}
}
