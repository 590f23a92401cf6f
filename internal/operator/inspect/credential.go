package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/operator"
)

// openOnce is storeAtHand, and waits for one that is away only the first time.
func (p *prober) openOnce(ctx context.Context) (*operator.Session, error) {
	if p.away != nil {
		return nil, p.away
	}
	st, err := p.StoreAtHand(ctx)
	p.away = err
	return st, err
}

// authorize gives the endpoint the token that a delivery would send there. done ends what renewing needs.
func (p *prober) authorize(ctx context.Context, e *mcpcall.Endpoint) (done func(), err error) {
	done = func() {}
	if e.URL == "" || len(e.Headers) > 0 {
		return done, nil
	}
	st, err := p.openOnce(ctx)
	if err != nil {
		return done, nil // store says why
	}
	done = st.Close
	tokens, _, err := st.AgentTokens(ctx, p.agent)
	if err != nil || len(tokens) == 0 {
		return done, err
	}
	keys, err := p.Backend.Keyset()
	if err != nil {
		return done, fmt.Errorf("a token is stored for the agent, and without it the agent would answer something else than it answers deliveries: %w", err)
	}
	p.authorizer, err = agentauth.New(agentauth.Config{Ledger: st, Opener: keys, Sealer: keys, OAuth: p.content.OAuth,
		Spool: st.Spool, Logger: p.Logger})
	if err != nil {
		return done, err
	}
	done = flushThenClose(ctx, p.authorizer, st.Close)
	subject := agentauth.Subject{Agent: p.agent, NamedByJob: p.ask.URL != "", Insist: true}
	if p.auth, err = p.authorizer.Authorize(ctx, subject, *e); err != nil {
		return done, err
	}
	*e = p.auth.Endpoint
	if stored, _ := p.auth.Stored(); stored {
		p.addNote("the token stored for its origin was sent")
	}
	return done, nil
}

// sentStored tells whether credentials went along that OAuth would not replace: an access token, or headers of the
// servers file, which win over whatever is stored.
func (p *prober) sentStored(e mcpcall.Endpoint) bool {
	if p.auth == nil {
		return len(e.Headers) > 0
	}
	stored, granted := p.auth.Stored()
	return granted || !stored && len(e.Headers) > 0
}

// flushThenClose has the store take what it did not when a token was renewed, before it is closed: a refresh token
// that was replaced is good for nothing any more.
func flushThenClose(ctx context.Context, c interface{ Flush(context.Context) }, closeStore func()) func() {
	return func() {
		defer closeStore()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
		defer cancel()
		c.Flush(ctx)
	}
}

const flushTime = 10 * time.Second

// adviseOAuth says what to store for an agent that names who gives its tokens (RFC 9728 §5.1), when nothing of the
// kind was sent.
func (p *prober) adviseOAuth(e mcpcall.Endpoint, err error) {
	var call *mcpcall.CallError
	switch {
	case !errors.As(err, &call) || call.Status != http.StatusUnauthorized && call.Status != http.StatusForbidden:
		return
	case p.sentStored(e):
		return
	}
	if says := oauth.ParseChallenge(call.Challenge); !says.Bearer || says.Metadata == "" {
		return
	}
	p.addNote(fmt.Sprintf("it wants OAuth: `worker token set %[1]s --client-id ID`, or `worker token login %[1]s`",
		p.found.Agent))
}

// withTokenRefresh makes a request of the agent and, when the agent refuses an access token, once more with another
// one, as a delivery does.
func (p *prober) withTokenRefresh(ctx context.Context, e *mcpcall.Endpoint, request func() error) error {
	if p.auth == nil {
		return request()
	}
	before := p.auth.Refreshed()
	err := p.authorizer.WithTokenRefresh(ctx, p.auth, func(_ context.Context, now mcpcall.Endpoint) error {
		*e = now
		return request()
	})
	if p.auth.Refreshed() && !before {
		p.addNote("the agent refused the access token that was at hand, so that another one was asked for and sent")
	}
	return err
}
