package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/store"
)

type tokenRemoveCmd struct {
	agentArg
	Origin string `required:"" help:"The origin it was stored for, as token list tells." placeholder:"URL"`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

func (c *tokenRemoveCmd) Run(a *app) error {
	g, err := c.agent(a)
	if err != nil {
		return err
	}
	origin, err := delivery.CredentialOrigin(c.Origin)
	if err != nil {
		return &misuseError{fmt.Sprintf("--origin: %v", err)}
	}
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	had, err := c.login(a, st, g, origin)
	if err != nil {
		return err
	}
	out := changeOfToken(store.Token{Agent: g, Origin: origin})
	out.Audit, err = audited(a.ctx, st, out.audit(c.actor(), "token remove"), func() (int64, error) {
		released, tasks, err := st.RemoveToken(a.ctx, g, origin)
		st.dispatch(a.ctx, tasks)
		out.Released = released
		return 1, err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("no token of %s is stored for %s: `worker token list`", nameOf(g), printable(origin))
	case err != nil:
		return err
	}
	if had != nil { // after it is gone here, so that no worker renews it meanwhile
		out.Revocation = had.revoke(a)
	}
	if c.JSON {
		return writeJSON(a, out)
	}
	_, err = fmt.Fprintf(a.out, "the token of %s for %s is removed; %d held deliveries were released (audit %d)\n", nameOf(g), printable(origin), out.Released, out.Audit)
	if err == nil && out.Revocation != nil {
		_, err = fmt.Fprintln(a.out, out.Revocation.words())
	}
	return err
}

// login is the OAuth credential that is about to be removed, opened; nil: what is stored is none, or is not there.
func (c *tokenRemoveCmd) login(a *app, st *openStore, g store.Agent, origin string) (*removedLogin, error) {
	tokens, _, err := st.AgentTokens(a.ctx, g)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tokens, func(t store.Token) bool { return t.Origin == origin && t.OAuth() })
	if i < 0 {
		return nil, nil
	}
	return openLogin(a, st, tokens[i]), nil
}
