package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
)

// target is where an agent's deliveries go now.
type target struct {
	Origin      string
	Path        string // of the registration; "" when the servers file names the agent, whose path may be a secret: its token goes where that leads
	TokenHeader string // that the registration names, as it names it
	Words       string // where that is from, and what binds the agent to it
	Endpoint    mcpcall.Endpoint
}

// header is the canonical one that the registration asks for, "" when it does not say.
func (t target) header() (string, error) {
	if t.TokenHeader == "" {
		return "", nil
	}
	h, err := mcpcall.CredentialHeader(t.TokenHeader)
	if err != nil {
		return "", fmt.Errorf("the registration names a header that its token is not sent in: %w", err)
	}
	return h, nil
}

// findTarget finds one agent as a delivery would: the servers file, then the chain.
func findTarget(a *app, g store.Agent, instead string) (target, error) {
	content, err := service.OpenContent(a.cfg, a.log)
	if err != nil {
		return target{}, err
	}
	defer content.Close()
	return targetOf(a.ctx, a, content, g, instead)
}

// targetOf is findTarget. instead is what the command line can say when nobody can look, as in ", or say --origin"; "": nothing.
func targetOf(ctx context.Context, a *app, content *service.Content, g store.Agent, instead string) (target, error) {
	listed, err := a.listedServer(g)
	if err != nil {
		return target{}, err
	}
	if listed != nil {
		if e, ok := listed.Endpoint(); ok {
			return listedTarget(e)
		}
	}
	if !content.HasChain(g.ChainID) {
		return target{}, &misuseError{fmt.Sprintf("where the agent is cannot be looked up: its chain has no RPC URL; set RPC_URL_%d%s", g.ChainID, instead)}
	}
	id, ok := new(big.Int).SetString(g.ID, 10)
	if !ok || id.BitLen() > 256 {
		return target{}, &misuseError{fmt.Sprintf("%s is no agent id: it is wider than 256 bits", g.ID)}
	}
	t, err := content.Resolver.Resolve(ctx, resolver.Agent{ChainID: g.ChainID, Registry: common.HexToAddress(g.Registry), ID: id})
	if err != nil {
		return target{}, fmt.Errorf("%s is not found: %s", nameOf(g), printable(err.Error()))
	}
	if t.URL == "" {
		return target{}, errors.New("the agent is a command, which takes no token: give it one by env in HERALD_SERVERS_FILE")
	}
	origin, err := agentauth.CredentialOrigin(t.URL)
	if err != nil {
		return target{}, fmt.Errorf("the agent's registration leads to what has no origin: %w", err)
	}
	return target{Origin: origin, Path: agentauth.CredentialPath(t.URL), TokenHeader: t.TokenHeader, Words: fmt.Sprintf("from %s, %s; %s", t.DocumentSource, cmp.Or(t.From, "its registration"), bindingWords(t.Binding)),
		Endpoint: mcpcall.Endpoint{Transport: t.Transport, URL: t.URL, ProtocolHint: t.ProtocolHint}}, nil
}

// listedTarget is what the servers file says; what it sends itself wins over a token.
func listedTarget(e mcpcall.Endpoint) (target, error) {
	switch {
	case e.URL == "":
		return target{}, errors.New("the servers file names a command for this agent, which takes no token: give it one by env there")
	case len(e.Headers) > 0:
		return target{}, errors.New("the servers file names headers for this agent: those are sent, and a stored token is not")
	}
	origin, err := agentauth.CredentialOrigin(e.URL)
	if err != nil {
		return target{}, fmt.Errorf("what the servers file names has no origin: %w", err)
	}
	return target{Origin: origin, Words: "from the servers file", Endpoint: e}, nil
}
