package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/door/server/pages"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
)

// The API and the pages have connections of their own, so that deliveries never wait for a reader.
const (
	webConns   = 6
	webTimeout = 10 * time.Second // of one statement
)

// operatorTimeout bounds the wait of a request for Postgres.
const operatorTimeout = 10 * time.Second

// openWeb opens the API and the pages. awaitServices mounts their routes.
func (a *assembly) openWeb() (err error) {
	a.webStore, err = a.openStore(postgres.Config{URL: a.backend.DatabaseURL, LeaderURL: a.backend.LeaderURL,
		MaxConns: webConns, StatementTimeout: webTimeout})
	if err != nil {
		return err
	}
	op := operator.New(operator.Config{Settings: a.cfg, Backend: lentBackend{a}, Person: unattended{a.log},
		Logger: a.log, Timeout: operatorTimeout, Live: liveView{a, a.throughput}})
	a.operator.Store(op)
	v1, err := api.New(api.Config{Operator: op, Intake: a.intake, Events: records.New(a.webStore), Calls: a.executor,
		Limits: backend.JobLimits(a.cfg), CallTimeout: a.cfg.CallTimeout, Logger: a.log})
	if err != nil {
		return err
	}
	web, err := pages.New(pages.Config{Operator: op, Logger: a.log})
	if err != nil {
		return err
	}
	a.addServices(newLoop("events", v1.Run))
	a.routes = slices.Concat(web.Routes(), v1.Routes(), a.routes)
	return nil
}

// lentBackend is a Backend that lends the worker's own parts. Close functions do nothing.
type lentBackend struct{ *assembly }

func (b lentBackend) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Ledger: b.webStore, Records: records.New(b.webStore), Spool: b.queue.Renewals(),
		Dispatcher: b.dispatcher, Close: func() {}}, nil
}

func (b lentBackend) OpenContent() (*operator.Content, error) {
	c := b.content.Content
	c.Close = func() {}
	return &c, nil
}

func (b lentBackend) Keyset() (*secret.Keyset, error) { return b.keys, nil }
func (b lentBackend) Master() (secret.Master, error)  { return backend.Master(b.cfg) }
func (b lentBackend) DataDir() string                 { return b.backend.DataDir }

// unattended is the operator.Person of requests over HTTP. It cannot answer a question, so a request must contain
// consent.
type unattended struct{ log *slog.Logger }

func (unattended) Confirm(context.Context, string) (bool, error) { return false, operator.ErrNoPerson }
func (n unattended) Notify(line string)                          { n.log.Info("operator", "note", line) }

var errStarting = errors.New("the service is still starting")

// loadCallers loads the callers of the known tokens.
func (a *assembly) loadCallers(ctx context.Context) (operator.FindCaller, error) {
	if op := a.operator.Load(); op != nil {
		return op.LoadCallers(ctx)
	}
	return nil, errStarting
}

// liveView provides the worker's own state for the overview.
type liveView struct {
	*assembly
	*throughput.Counter
}

func (v liveView) Breaker(endpoint string) string {
	return v.originLimits().DescribeBreaker(endpoint)
}

func (v liveView) Effort(ctx context.Context, agent erc8004.Agent) *effort.Usage {
	return v.efforts.Usage(ctx, agent)
}

func (v liveView) OpenBreakers() int {
	seen := v.limitStats()
	return seen.Open + seen.HalfOpen
}

// Missing implements operator.Live. It leaves out the chains that are only read late, because the cursors in Postgres
// show them.
func (v liveView) Missing() map[string]string {
	missing := map[string]string{}
	waiting, degraded := v.ready.readState()
	for _, name := range []string{postgresName, redisName} {
		setOrDelete(missing, name, waiting[name])
	}
	for name := range degraded {
		if strings.HasPrefix(name, "chain ") {
			missing[name] = degraded[name]
		}
	}
	return missing
}
