package service

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/delivery/effort"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/server"
	"github.com/agentherald/herald/internal/server/api"
	"github.com/agentherald/herald/internal/server/pages"
	"github.com/agentherald/herald/internal/store"
)

// API and pages have connections of their own: however many look on, deliveries do not wait for one.
const (
	webConns   = 6
	webTimeout = 10 * time.Second // of a statement
)

// operatorTimeout is how long a request waits for Postgres.
const operatorTimeout = 10 * time.Second

// webParts are what the HTTP server shows and does beside health and metrics.
type webParts struct {
	store    *store.Store
	operator *operator.Operator
	api      *api.API
	pages    *pages.Pages
}

func (a *assembly) openWeb(cfg *config.Config, d *delivery.Dispatcher, o Options) (err error) {
	a.web.store, err = store.Open(store.Config{URL: a.backend.DatabaseURL, StrictOrder: cfg.StrictOrder, MaxConns: webConns, StatementTimeout: webTimeout})
	if err != nil {
		return err
	}
	a.web.operator = operator.New(operator.Config{Settings: cfg, Backend: lentBackend{a, cfg, d}, Person: nobody{o.Logger},
		Logger: o.Logger, Timeout: operatorTimeout, Live: liveView{a}})
	a.web.api, err = api.New(api.Config{Operator: a.web.operator, Intake: a.intake, Events: a.web.store, Calls: a.direct,
		Limits: JobLimits(cfg), CallTimeout: cfg.CallTimeout, Logger: o.Logger})
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

// mountWeb serves API, pages and the asynq web UI.
func (a *assembly) mountWeb(web *server.Server, monitor http.Handler) {
	web.Mount(monitor, slices.Concat(a.web.pages.Routes(), a.web.api.Routes(), a.signingRoutes()))
}

// lentBackend lends an Operator what the worker has. Nothing of it is closed after an answer.
type lentBackend struct {
	*assembly
	cfg        *config.Config
	dispatcher *delivery.Dispatcher
}

func (b lentBackend) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Store: b.web.store, Spool: b.queue, Dispatcher: b.dispatcher, Close: func() {}}, nil
}

func (b lentBackend) OpenContent() (*operator.Content, error) {
	c := b.content.Content
	c.Close = func() {}
	return &c, nil
}

func (b lentBackend) Keyset() (*secret.Keyset, error) { return b.keys, nil }
func (b lentBackend) Master() (secret.Master, error)  { return Master(b.cfg) }
func (b lentBackend) DataDir() string                 { return b.backend.DataDir }

// nobody is who asks over HTTP, as a Person: a question has to be answered by what was sent.
type nobody struct{ log *slog.Logger }

func (nobody) Confirm(context.Context, string) (bool, error) { return false, operator.ErrNobody }
func (n nobody) Notify(line string)                          { n.log.Info("operator", "note", line) }

// identify looks up who carries a token.
func (a *assembly) identify(ctx context.Context, token secret.Secret) (operator.Caller, error) {
	return a.web.operator.IdentifyCaller(ctx, token)
}

// liveView is what the overview asks of this worker.
type liveView struct{ *assembly }

func (v liveView) Breaker(endpoint string) string {
	return delivery.DescribeBreaker(endpoint, v.limits, v.unbound)
}

func (v liveView) Effort(ctx context.Context, agent store.Agent) *effort.Usage {
	return v.efforts.Usage(ctx, agent)
}

func (v liveView) OpenBreakers() int {
	seen := v.limits.Stats()
	return seen.Open + seen.HalfOpen
}

func (v liveView) Minutes(ctx context.Context, n int) ([]throughput.Minute, error) {
	return v.throughput.Minutes(ctx, n)
}
