package operator

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
)

// Ends of commands that look at an agent; what was found is printed by then.
var (
	ErrNotNow        = errors.New("could not be fetched (see above): try again later")
	errNotBefore     = errors.New("could not be fetched, and will not be before what is said above is mended")
	errUnregistered  = errors.New("not found: the registry has no such agent (see above)")
	ErrUndeliverable = errors.New("--check: a delivery would not be delivered (see above)")
	errUnusable      = errors.New("--check: the document cannot be used (see above)")
)

// Resolution is what resolving an agent found.
type Resolution struct {
	Agent    string       `json:"agent"`
	Registry string       `json:"identityRegistry"`
	Steps    []Step       `json:"steps"`
	Endpoint *Endpoint    `json:"endpoint,omitempty"`
	Resolved bool         `json:"resolved"`
	Status   store.Status `json:"status,omitempty"` // that a delivery would get now; none when it would be called
	Reason   retry.Reason `json:"reason,omitempty"`
	Verdict  string       `json:"verdict"`
	NextStep string       `json:"nextStep,omitempty"` // what a person does about the reason
	Note     string       `json:"note,omitempty"`     // that deliveries do not go by this
	TookMs   float64      `json:"tookMs"`

	Name   string          `json:"-"` // of the agent, in a sentence
	listed *servers.Server // nil: the servers file does not name the agent
	again  error           // why a delivery would try again, or that there is no such agent
}

// Step is one of the steps by which an agent is resolved.
type Step struct {
	What   string  `json:"step"`
	Source string  `json:"source"`
	Found  string  `json:"found"`
	TookMs float64 `json:"tookMs"`
}

// Endpoint is where an agent is called, without what may be secret in it.
type Endpoint struct {
	Transport    string `json:"transport"`
	Address      string `json:"address"` // a URL without query, or stdio:COMMAND without arguments
	ProtocolHint string `json:"protocolHint,omitempty"`
	From         string `json:"from"` // where in the document
	Binding      string `json:"binding,omitempty"`
}

// Resolve resolves an agent with the worker's configuration and nothing remembered. Neither Postgres nor Redis is
// asked.
func (o *Operator) Resolve(ctx context.Context, ref AgentRef) (r Resolution, err error) {
	g, err := o.parseRef(ref)
	if err != nil {
		return r, err
	}
	id, err := resolverAgent(g)
	if err != nil {
		return r, err
	}
	listed, err := o.listedServer(g)
	if err != nil {
		return r, err
	}
	content, err := o.Backend.OpenContent()
	if err != nil {
		return r, err
	}
	defer content.Close()
	if !content.HasChain(g.ChainID) {
		return r, newMisuse("chain %d has no RPC URL: set RPC_URL_%d", g.ChainID, g.ChainID)
	}

	began := time.Now()
	t, err := content.Resolver.Resolve(ctx, id)
	r = Resolution{Agent: shortName(g), Registry: g.Registry, Steps: describeSteps(t),
		TookMs: milliseconds(time.Since(began)),
		Name:   DescribeAgent(g), listed: listed}
	if err == nil {
		r.Endpoint = describeEndpoint(t)
		err = checkAddress(content.Guard, t.URL)
	}
	r.conclude(g, t, err)
	if listed != nil {
		r.Note = "the servers file names this agent, and deliveries go by that first: `worker agent probe`"
	}
	return r, nil
}

// resolverAgent is an agent as the resolver takes it.
func resolverAgent(g store.Agent) (resolver.Agent, error) {
	id, ok := new(big.Int).SetString(g.ID, 10)
	if !ok || id.BitLen() > 256 {
		return resolver.Agent{}, newMisuse("%s is no agent id: it is wider than 256 bits", g.ID)
	}
	return resolver.Agent{ChainID: g.ChainID, Registry: common.HexToAddress(g.Registry), ID: id}, nil
}

// checkAddress refuses an address that would be refused when it is dialled, as far as that can be said without doing
// so.
func checkAddress(guard *netguard.Guard, address string) error {
	u, err := url.Parse(address)
	if address == "" || err != nil {
		return nil
	}
	return guard.CheckURL(u)
}

// End is how a command ends that found this; check: it fails unless a delivery would call the agent. That goes by the
// servers file where it says how the agent is called, else by the chain.
func (r Resolution) End(check bool) error {
	byFile := false
	if r.listed != nil {
		_, byFile = r.listed.Endpoint()
	}
	switch {
	case !check:
		return r.again
	case r.listed != nil && !r.listed.Enabled:
		return ErrUndeliverable
	case byFile:
		return nil
	case r.again == nil && !r.Resolved:
		return ErrUndeliverable
	}
	return r.again
}

// conclude says what it comes to.
func (r *Resolution) conclude(g store.Agent, t resolver.Target, err error) {
	if err == nil {
		r.Resolved = true
		r.Verdict = fmt.Sprintf("a delivery calls %s over %s, %s; %s", r.Endpoint.Address, r.Endpoint.Transport,
			describeHint(t.ProtocolHint), describeBinding(t.Binding))
		return
	}
	v := retry.Classify(err)
	r.Status, r.Reason, r.Verdict = describeVerdict(v)
	r.NextStep = v.Reason.NextStep(retry.Subject{ChainID: g.ChainID, AgentID: g.ID, Registry: g.Registry,
		Endpoint: t.URL})
	r.again = endOf(v)
}

// describeVerdict is what a delivery with this verdict becomes, and why.
func describeVerdict(v retry.Verdict) (store.Status, retry.Reason, string) {
	status, ends := store.Waiting, "waits and is tried again"
	switch v.Ending {
	case retry.Skip:
		status, ends = store.Skipped, "is skipped"
	case retry.Reject:
		status, ends = store.Rejected, "is rejected"
	case retry.Hold:
		status, ends = store.Held, "is held"
	}
	return status, v.Reason, fmt.Sprintf("a delivery %s (%s): %s", ends, v.Reason, v.Text)
}

// endOf is how a command ends that found this verdict.
func endOf(v retry.Verdict) error {
	switch {
	case v.Ending == retry.Wait:
		return ErrNotNow
	case v.Reason == retry.AgentNotFound:
		return errUnregistered
	}
	return nil
}

func describeSteps(t resolver.Target) []Step {
	steps := []Step{}
	for _, s := range t.Steps {
		steps = append(steps, Step{What: s.What, Source: s.Source, Found: s.Detail, TookMs: milliseconds(s.Took)})
	}
	return steps
}

func describeEndpoint(t resolver.Target) *Endpoint {
	e := &Endpoint{Transport: t.Transport, Address: withoutQuery(t.URL), ProtocolHint: t.ProtocolHint, From: t.From,
		Binding: t.Binding}
	if t.URL == "" {
		e.Address = "stdio:" + t.Command
	}
	return e
}

func describeHint(hint string) string {
	if hint == "" {
		return "with no protocol revision named"
	}
	return "with protocol revision " + hint + " tried first"
}

// describeBinding tell what binds an agent to its endpoint.
func describeBinding(binding string) string {
	switch binding {
	case resolver.BoundByOrigin:
		return "bound: the endpoint's own origin serves the registration document"
	case resolver.BoundByDomain:
		return "bound: the endpoint's domain names this agent"
	case resolver.Unbound:
		return "not bound: nothing on the endpoint's side names this agent; all such agents of an origin share small limits of their own"
	case resolver.BindingUnknown:
		return "not known to be bound: the endpoint's domain could not be asked just now"
	}
	return "nobody was asked whether it is bound"
}

// withoutQuery is a URL as anybody may see it: without query, fragment and user information, and otherwise as it is
// written.
func withoutQuery(s string) string {
	if u, err := url.Parse(s); err == nil && u.User != nil {
		u.User = nil
		s = u.String()
	}
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		return s[:i]
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
