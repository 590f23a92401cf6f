package app

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/door/server/pages"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store"
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

// webParts serves the API and the pages.
type webParts struct {
	store    *store.Store
	operator *operator.Operator
	api      *api.API
	pages    *pages.Pages
}

func (a *assembly) openWeb(cfg *config.Config, d *dispatch.Dispatcher, o Options) (err error) {
	a.web.store, err = store.Open(postgres.Config{URL: a.backend.DatabaseURL, LeaderURL: a.backend.LeaderURL,
		MaxConns: webConns, StatementTimeout: webTimeout})
	if err != nil {
		return err
	}
	a.web.store.StrictOrder = cfg.StrictOrder
	a.web.operator = operator.New(operator.Config{Settings: cfg, Backend: lentBackend{a, cfg, d},
		Person: unattended{o.Logger},
		Logger: o.Logger, Timeout: operatorTimeout, Live: liveView{a}})
	a.web.api, err = api.New(api.Config{Operator: a.web.operator, Intake: a.intake, Events: records.New(a.web.store),
		Calls: a.direct, Limits: backend.JobLimits(cfg), CallTimeout: cfg.CallTimeout, Logger: o.Logger})
	if err != nil {
		return err
	}
	a.web.pages, err = pages.New(pages.Config{Operator: a.web.operator, Logger: o.Logger})
	return err
}

func (w *webParts) close() {
	if w.store != nil {
		w.store.Close()
	}
}

// mountWeb adds the API, the pages and the asynq web UI to the server.
func (a *assembly) mountWeb(web *server.Server, monitor http.Handler) {
	web.Mount(monitor, slices.Concat(a.web.pages.Routes(), a.web.api.Routes(), a.signingRoutes()))
}

// lentBackend is a Backend that lends the worker's own parts. Close functions do nothing.
type lentBackend struct {
	*assembly
	cfg        *config.Config
	dispatcher *dispatch.Dispatcher
}

func (b lentBackend) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Ledger: b.web.store, Records: records.New(b.web.store), Spool: b.queue,
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

// identify returns the caller that a token belongs to.
func (a *assembly) identify(ctx context.Context, token secret.Secret) (operator.Caller, error) {
	return a.web.operator.IdentifyCaller(ctx, token)
}

// liveView provides the worker's own state for the overview.
type liveView struct{ *assembly }

func (v liveView) Breaker(endpoint string) string {
	return v.originLimits().DescribeBreaker(endpoint)
}

func (v liveView) Effort(ctx context.Context, agent store.Agent) *effort.Usage {
	return v.efforts.Usage(ctx, agent)
}

func (v liveView) OpenBreakers() int {
	seen := v.limitStats()
	return seen.Open + seen.HalfOpen
}

func (v liveView) Minutes(ctx context.Context, n int) ([]throughput.Minute, error) {
	return v.throughput.Minutes(ctx, n)
}

func (v liveView) Hours(ctx context.Context, n int) ([]throughput.Minute, error) {
	return v.throughput.Hours(ctx, n)
}
