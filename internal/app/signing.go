package app

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/operator/config"
)

// openSigning creates the ring of signing keys. Without HERALD_PUBLIC_URL it does nothing.
func (a *assembly) openSigning(cfg *config.Config, log *slog.Logger) (err error) {
	if cfg.PublicURL == "" {
		return nil
	}
	a.signing, err = signing.New(signing.Config{PublicURL: cfg.PublicURL, Records: a.records, Sealer: a.keys,
		Logger: log})
	return err
}

// newSigning returns a service that loads the keys before the first request is sent, and reloads them regularly.
func (a *assembly) newSigning() Service {
	refresh := newLoop("signing keys", a.signing.Run)
	return &funcService{name: refresh.Name(), stop: refresh.Stop, start: func(ctx context.Context) error {
		if err := a.signing.Load(ctx); err != nil {
			return err
		}
		return refresh.Start(ctx)
	}}
}

// signingRoutes returns the route of the key directory.
func (a *assembly) signingRoutes() []server.Route {
	if a.signing == nil {
		return nil
	}
	return []server.Route{{Method: http.MethodGet, Path: signing.DirectoryPath, Open: true,
		Handle: func(w http.ResponseWriter, r *http.Request, _ server.Visitor) { a.signing.ServeHTTP(w, r) }}}
}
