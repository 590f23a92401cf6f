package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator"
)

// target is the current endpoint of an agent.
type target struct {
	Origin netguard.CredentialOrigin
	// Path is the path of the registered endpoint. It is empty if the endpoint comes from the servers file, whose paths
	// may be secret: the token is then sent to the path in that file.
	Path        string
	TokenHeader string // as the registration spells it
	Words       string // source of the endpoint, and its binding to the agent
	Endpoint    mcpcall.Endpoint
}

// tokenHeader returns the canonical name of the header that the registration asks for, or "" if it names none.
func (t target) tokenHeader() (string, error) {
	if t.TokenHeader == "" {
		return "", nil
	}
	h, err := mcpcall.CredentialHeader(t.TokenHeader)
	if err != nil {
		return "", fmt.Errorf("the registration names a header that its token is not sent in: %w", err)
	}
	return h, nil
}

// findTarget finds an agent's endpoint as a delivery would: in the servers file, then on the chain. instead is the end
// of an error text, such as ", or say --origin", for requests that can name the endpoint themselves; it may be empty.
func (o Tokens) findTarget(ctx context.Context, content *operator.Content, g erc8004.Agent,
	instead string) (target, error) {
	listed, err := o.ListedServer(g)
	if err != nil {
		return target{}, err
	}
	if listed != nil {
		if e, ok := listed.Endpoint(); ok {
			return listedTarget(e)
		}
	}
	if !content.HasChain(g.ChainID) {
		return target{}, operator.NewMisuse("where the agent is cannot be looked up: its chain has no RPC URL; "+
			"set RPC_URL_%d%s", g.ChainID, instead)
	}
	agent, err := operator.ResolverAgent(g)
	if err != nil {
		return target{}, err
	}
	t, err := content.Resolver.Resolve(ctx, agent)
	if err != nil {
		return target{}, fmt.Errorf("%s is not found: %s", operator.DescribeAgent(g), text.Printable(err.Error()))
	}
	if t.URL == "" {
		return target{},
			errors.New("the agent is a command, which accepts no token: pass one by env in HERALD_SERVERS_FILE")
	}
	origin, err := netguard.CredentialOriginOf(t.URL)
	if err != nil {
		return target{}, fmt.Errorf("the agent's registration leads to an endpoint without an origin: %w", err)
	}
	return target{Origin: origin, Path: auth.CredentialPath(t.URL), TokenHeader: t.TokenHeader,
		Words: fmt.Sprintf("from %s, %s; %s", t.DocumentSource, cmp.Or(t.From, "its registration"),
			t.DescribeBinding()),
		Endpoint: mcpcall.Endpoint{Transport: t.Transport, URL: t.URL, ProtocolHint: t.ProtocolHint}}, nil
}

// listedTarget returns the endpoint in the servers file. It is an error if the file sets headers, because they take
// precedence over a token.
func listedTarget(e mcpcall.Endpoint) (target, error) {
	switch {
	case e.URL == "":
		return target{},
			errors.New("the servers file names a command for this agent, which accepts no token: pass one by env there")
	case len(e.Headers) > 0:
		return target{},
			errors.New("the servers file names headers for this agent: those are sent, and a stored token is not")
	}
	origin, err := netguard.CredentialOriginOf(e.URL)
	if err != nil {
		return target{}, fmt.Errorf("the endpoint in the servers file has no origin: %w", err)
	}
	return target{Origin: origin, Words: "from the servers file", Endpoint: e}, nil
}
