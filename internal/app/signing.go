package app

import (
	"net/http"

	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/mcpcall/signing"
)

// openSigning creates the ring of signing keys. Its service loads the keys before the first request is sent. Without
// HERALD_PUBLIC_URL it does nothing.
func (a *assembly) openSigning() (err error) {
	if a.cfg.PublicURL == "" {
		return nil
	}
	a.signing, err = signing.New(signing.Config{PublicURL: a.cfg.PublicURL, Records: a.records, Keys: a.keys,
		Logger: a.log})
	if err != nil {
		return err
	}
	a.addServices(newLoop("signing keys", a.signing.Run).startAfter(a.signing.Load))
	a.routes = append(a.routes, server.Route{Method: http.MethodGet, Path: signing.DirectoryPath, Open: true,
		Handle: func(w http.ResponseWriter, r *http.Request, _ server.Visitor) { a.signing.ServeHTTP(w, r) }})
	return nil
}
