package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Submitter accepts jobs. A sender without ledger.TrustDirect may not say where and how to call the agent.
type Submitter interface {
	Submit(ctx context.Context, bodies [][]byte, from ledger.Source) ([]intake.Answer, error)
}

// Config configures an API.
type Config struct {
	Operator *operator.Operator
	Intake   Submitter
	Events   *records.Store // the log of changes of status
	Calls    ToolCaller
	Limits   job.Limits   // for direct calls
	Logger   *slog.Logger // default slog.Default()

	// CallTimeout bounds a direct call. Default 30 s.
	CallTimeout time.Duration
	// PollEvents is the interval at which Postgres is polled for new events while a stream is open. Default 250 ms.
	PollEvents time.Duration
}

// API serves /v1, and /mcp/call as the bridge of the old backend did.
type API struct {
	Config
	feed       *feed
	enqueuing  *slots   // requests that enqueue jobs
	calling    *slots   // direct calls
	listening  *slots   // event streams
	paces      sync.Map // *rate.Limiter by the name of a token (paceOf)
	operations []operation
	document   []byte // the OpenAPI document
}

// maxEnqueuing bounds the concurrent requests that enqueue jobs. Each may hold up to 500 jobs in memory.
const maxEnqueuing = 32

// New validates the configuration and generates the OpenAPI document.
func New(cfg Config) (*API, error) {
	if cfg.Operator == nil || cfg.Intake == nil || cfg.Events == nil || cfg.Calls == nil {
		return nil, errors.New("api: an operator, an intake, events and a caller of tools are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.PollEvents = cmp.Or(cfg.PollEvents, 250*time.Millisecond)
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, 30*time.Second)
	a := &API{Config: cfg, enqueuing: newSlots(maxEnqueuing), calling: newSlots(maxCalling),
		listening: newSlots(maxListeners)}
	a.feed = newFeed(cfg.Events, cfg.PollEvents, cfg.Logger)
	a.operations = a.listOperations()
	var err error
	a.document, err = writeDocument(a.operations)
	return a, err
}

// Run polls for events while streams are open, until ctx ends.
func (a *API) Run(ctx context.Context) { a.feed.run(ctx) }

// Routes returns the routes of the API, including that of its OpenAPI document.
func (a *API) Routes() []server.Route {
	routes := make([]server.Route, 0, len(a.operations)+1)
	for _, op := range a.operations {
		routes = append(routes, server.Route{Method: op.method, Path: op.path, Scope: op.scope, BearerOnly: true,
			Handle: a.handler(op)})
	}
	return append(routes, server.Route{Method: http.MethodGet, Path: "/v1/openapi.json", Scope: operator.ScopeRead,
		BearerOnly: true, Handle: a.serveDocument})
}

func (a *API) handler(op operation) func(http.ResponseWriter, *http.Request, server.Visitor) {
	return func(w http.ResponseWriter, r *http.Request, v server.Visitor) {
		if err := checkQuery(op, r.URL.RawQuery); err != nil {
			a.answerError(w, r, err)
			return
		}
		if op.stream != nil {
			op.stream(w, r, v)
			return
		}
		answer, err := op.answer(&request{Request: r, w: w, visitor: v})
		if err != nil {
			a.answerError(w, r, err)
			return
		}
		server.WriteJSON(w, http.StatusOK, answer)
	}
}

// checkQuery refuses parameters that the operation does not have: without a misspelled filter, a list has every row.
// Submitted jobs and direct calls have no filters, so their queries have no effect.
func checkQuery(op operation, raw string) error {
	if op.stream != nil && len(op.query) == 0 {
		return nil
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		return refuse(http.StatusBadRequest, "invalid_request", "", "the query cannot be read: %v", err)
	}
	for name, values := range query {
		i := slices.IndexFunc(op.query, func(p parameter) bool { return p.name == name })
		switch {
		case i < 0:
			return refuse(http.StatusBadRequest, "invalid_request", name, "there is no parameter %.40q here", name)
		case len(values) > 1 && !op.query[i].repeated:
			return refuse(http.StatusBadRequest, "invalid_request", name, "%s may not be repeated", name)
		}
	}
	return nil
}

func (a *API) serveDocument(w http.ResponseWriter, _ *http.Request, _ server.Visitor) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(a.document)
}
