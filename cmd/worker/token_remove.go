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
	tokens, _, err := st.AgentTokens(a.ctx, g)
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
	noteLogin(a, tokens, origin)
	if c.JSON {
		return writeJSON(a, out)
	}
	_, err = fmt.Fprintf(a.out, "the token of %s for %s is removed; %d held deliveries were released (audit %d)\n", nameOf(g), printable(origin), out.Released, out.Audit)
	return err
}

// noteLogin says of a login that was removed what is left of it elsewhere.
func noteLogin(a *app, tokens []store.Token, origin string) {
	i := slices.IndexFunc(tokens, func(t store.Token) bool { return t.Origin == origin && t.Scheme == store.SchemeAuthorizationCode })
	if i >= 0 {
		fmt.Fprintf(a.err, "note: the login's refresh token stays good at %s until that is told: end Herald's access there, too\n", printable(short(tokens[i].Issuer)))
	}
}
