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

// preparedCall is what the agent's tool is to be called with.
type preparedCall struct {
	tool      string
	arguments map[string]any
	sanitized bool              // characters were taken out of what strangers wrote
	recorded  json.RawMessage   // the arguments as the attempt keeps them
	digest    [sha256.Size]byte // of the tool's name and the arguments
	release   func()            // gives back what is reserved in Executor.arguments; nil: nothing is

	listing *mcpcall.ToolSet // what the agent said last of its tools; nil: it did not say
}

// Whether an agent's tools may be those that it listed before.
const (
	cachedTools = false
	freshTools  = true
)

// prepareCall lists the agent's tools and fits the arguments to the one that has the best of names. Beside an error
// it returns the call that was prepared before, with the new listing.
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

	tool, fitted, err := FitCall(ctx, e.Decoding, a.event.job, a.file.File, a.claim.ID.String(), names, listing.Tools)
	if err != nil {
		return call, err
	}
	release, err := e.reserveArguments(a, len(fitted.Sent))
	if err != nil {
		return call, err
	}
	return preparedCall{
		tool: tool.Name, arguments: fitted.Arguments, sanitized: fitted.Cleaned,
		recorded: store.KeepSide(fitted.Sent), // all of it would be held for as long as the agent takes
		digest:   sha256.Sum256(fmt.Appendf(nil, "%q %s", tool.Name, fitted.Sent)),
		release:  release, listing: listing.Outline(),
	}, nil
}

// mayBeStale tells whether an older list of the agent's tools would explain why no call could be prepared.
func mayBeStale(err error) bool {
	var schema *mcpcall.SchemaError
	var failure *retry.Failure
	return errors.As(err, &schema) ||
		errors.As(err, &failure) && (failure.Reason == reason.ToolNotFound || failure.Reason == reason.ToolNotOffered)
}

// listTools asks what the agent offers.
func (e *Executor) listTools(ctx context.Context, a *attempt, fresh bool) (listing mcpcall.ToolSet, err error) {
	err = e.Authorizer.WithTokenRefresh(ctx, a.auth, func(ctx context.Context, endpoint mcpcall.Endpoint) (err error) {
		ctx, cancel := mcpcall.WithTimeout(ctx, e.CallTimeout)
		defer cancel()
		listing, err = e.Caller.Tools(ctx, endpoint, fresh)
		return err
	})
	return listing, err
}

// ListsNothing tells of a list of tools that failed that the agent does not even know tools/list.
func ListsNothing(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && call.Stage == mcpcall.StageList && retry.NotATool(err)
}

// smallArguments are sent without asking, so that honest agents do not wait behind large ones.
const smallArguments = 64 << 10

// argumentBudget bounds the bytes that calls in flight hold of large arguments: in all; half of that at newcomers; a
// quarter at one origin. A call that is alone there may have more.
type argumentBudget struct {
	most int64

	mu   sync.Mutex
	held map[string]int64 // of all, of newcomers, of each origin
}

// acquire takes so many bytes for a call at an origin; release is nil if they are not to be had.
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

// reserveArguments takes a share of what may be in flight for arguments of so many bytes of JSON, or puts the attempt
// off: the agent decides how long they are held.
func (e *Executor) reserveArguments(a *attempt, size int) (release func(), err error) {
	if size <= smallArguments {
		return nil, nil
	}
	// Three times: the arguments, the request that is made of them, and a copy while it is made.
	share := min(3*int64(size), e.MaxArgumentBytes)
	origin := limitedOrigin(a.endpoint.Endpoint, a.claim.Agent())
	if a.endpoint.unbound { // which takes no room from the agents whose endpoint it is
		origin = unboundPrefix + origin
	}
	if release = e.arguments.acquire(share, origin, a.slots != nil); release == nil {
		return nil, retry.Pause(reason.AgentBusy, 0,
			fmt.Sprintf("calls with large arguments are in flight, and %d bytes more would need too much memory", size))
	}
	return release, nil
}

// releaseArguments lets go of a call's arguments, and gives back their share.
func (e *Executor) releaseArguments(call *preparedCall) {
	call.arguments = nil
	if call.release != nil {
		call.release()
		call.release = nil
	}
}
