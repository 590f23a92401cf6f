package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/store"
)

type tokenRemoveCmd struct {
	agentArg
	Origin string `required:"" help:"The origin it was stored for, as token list tells, with or without its path." placeholder:"URL"`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

func (c *tokenRemoveCmd) Run(a *app) error {
	g, err := c.agent(a)
	if err != nil {
		return err
	}
	origin, err := agentauth.CredentialOrigin(c.Origin)
	if err != nil {
		return &misuseError{fmt.Sprintf("--origin: %v", err)}
	}
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	t, err := c.stored(a, st, g, origin)
	if err != nil {
		return err
	}
	var had *removedLogin
	if t.OAuth() {
		had = openLogin(a, st, t)
	}
	out := changeOfToken(store.Token{Agent: g, Origin: origin, Path: t.Path})
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

// stored is the token that is about to be removed. A path that it is not for is a mistake: there is one token for an origin.
func (c *tokenRemoveCmd) stored(a *app, st *openStore, g store.Agent, origin string) (store.Token, error) {
	tokens, _, err := st.AgentTokens(a.ctx, g)
	if err != nil {
		return store.Token{}, err
	}
	i := slices.IndexFunc(tokens, func(t store.Token) bool { return t.Origin == origin })
	if i < 0 {
		return store.Token{}, nil // RemoveToken says so
	}
	t := tokens[i]
	if path := agentauth.CredentialPath(c.Origin); path != "/" && path != t.Path {
		return t, &misuseError{fmt.Sprintf("the token of %s for this origin is stored for %s, and not for %s: say --origin %s to remove it",
			nameOf(g), placeWords(t), printable(short(path)), printable(origin))}
	}
	return t, nil
}
