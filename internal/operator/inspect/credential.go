package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/signing"
)

// openOnce opens the available store. It tries that only once and returns the same error afterwards.
func (p *prober) openOnce(ctx context.Context) error {
	if p.store == nil && p.away == nil {
		p.store, p.away = p.StoreAtHand(ctx)
	}
	return p.away
}

// authorize selects the credential that a delivery would send to the endpoint.
func (p *prober) authorize(ctx context.Context, e mcpcall.Endpoint) (err error) {
	if err := p.openAuthorizer(ctx, e); err != nil {
		return err
	}
	subject := auth.Subject{Agent: p.agent, NamedByJob: p.ask.URL != "", Insist: true}
	if p.auth, err = p.authorizer.Authorize(ctx, subject, e); err != nil {
		return err
	}
	if stored, _ := p.auth.Stored(); stored {
		p.addNote("the token stored for its origin was sent")
	}
	return nil
}

// openAuthorizer creates an Authorizer if a token is stored for the agent and the endpoint can receive it.
func (p *prober) openAuthorizer(ctx context.Context, e mcpcall.Endpoint) error {
	// storeObservation reports the error
	if p.ask.withoutToken || e.URL == "" || len(e.Headers) > 0 || p.openOnce(ctx) != nil {
		return nil
	}
	tokens, _, err := p.store.AgentTokens(ctx, p.agent)
	if err != nil || len(tokens) == 0 {
		return err
	}
	keys, err := p.Backend.Keyset()
	if err != nil {
		return fmt.Errorf("a token is stored for the agent, and without it the agent would answer something else than "+
			"it answers deliveries: %w", err)
	}
	p.authorizer, err = auth.New(auth.Config{Ledger: p.store, Records: p.store, Keys: keys,
		Classify: classify.Error, OAuth: p.content.OAuth, Spool: p.store.Spool, Logger: p.Logger})
	return err
}

// openSigner makes the probe sign its requests if the worker's requests are signed (HERALD_PUBLIC_URL).
func (p *prober) openSigner(ctx context.Context, calls *mcpcall.Config) error {
	if p.Settings.PublicURL == "" {
		return nil
	}
	if p.openOnce(ctx) != nil {
		p.addNote(
			"no database is available, so the request is not signed: an agent that verifies its caller refuses it")
		return nil
	}
	keys, err := p.Backend.Keyset()
	if err != nil {
		return err
	}
	ring, err := signing.New(signing.Config{PublicURL: p.Settings.PublicURL, Records: p.store,
		Keys: keys, Logger: p.Logger})
	if err != nil {
		return err
	}
	p.signs, calls.Signer = true, tamperingSigner{ring}
	return ring.Load(ctx)
}

// close ends the connection to the agent, and closes the store and the content.
func (p *prober) close(ctx context.Context) {
	if p.pool != nil {
		p.Disconnect(ctx, p.pool)
	}
	if p.store != nil {
		flushThenClose(ctx, p.authorizer, p.store.Close)
	}
	p.content.Close()
}

// flushThenClose stores renewed tokens that the store could not accept before, then closes it. They would be lost
// otherwise, and the replaced refresh token is no longer valid.
func flushThenClose(ctx context.Context, c interface{ Flush(context.Context) }, closeStore func()) {
	defer closeStore()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	c.Flush(ctx)
}

// flushTime bounds that flush.
const flushTime = 10 * time.Second

// adviseOAuth adds a note on how to store an OAuth client if the agent refuses a request and names its metadata (RFC
// 9728 §5.1). It adds none if an OAuth credential was sent or the servers file sets headers, which take precedence.
func (p *prober) adviseOAuth(err error) {
	call, ok := errors.AsType[*mcpcall.CallError](err)
	if !ok || call.Status != http.StatusUnauthorized && call.Status != http.StatusForbidden {
		return
	}
	// Headers of the servers file take precedence over stored tokens.
	stored, granted := p.auth.Stored()
	if granted || !stored && len(p.auth.Endpoint.Headers) > 0 {
		return
	}
	if says := oauth.ParseChallenge(call.Challenge); says.Bearer && says.Metadata != "" {
		agent := p.found.Agent
		if p.ask.withoutToken { // a check of a URL, whose agent is invented
			agent = "CHAIN:AGENT"
		}
		p.addNote(fmt.Sprintf("it wants OAuth: `worker token set %[1]s --client-id ID`, or `worker token login %[1]s`",
			agent))
	}
}

// withTokenRefresh sends a request to the agent. If the agent refuses the access token, it repeats the request once
// with a new one, as a delivery does.
func (p *prober) withTokenRefresh(ctx context.Context, request func(context.Context, mcpcall.Endpoint) error) error {
	before := p.auth.Refreshed()
	err := p.authorizer.WithTokenRefresh(ctx, p.auth, request)
	if p.auth.Refreshed() && !before {
		p.addNote("the agent refused the access token that was at hand, so that another one was asked for and sent")
	}
	return err
}
