package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
)

type agentResolveCmd struct {
	Agent    string  `arg:"" optional:"" help:"The agent, as in 8453:42." placeholder:"CHAIN:AGENT"`
	Registry string  `help:"Its IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
	URI      *string `name:"uri" help:"Resolve this URI instead, of whatever kind, without a chain. A path or file:// is read from this machine." placeholder:"URI"`
	Hash     string  `help:"With --uri: compare the bytes with this feedbackHash." placeholder:"0x…"`
	Check    bool    `help:"Exit 1 unless a delivery would call the agent; with --uri: unless the document is one that can be used."`
	JSON     bool    `name:"json" help:"As JSON."`
}

// Ends of commands that look at an agent; what was found is printed by then.
var (
	errNotNow        = errors.New("could not be fetched (see above): try again later")
	errNotBefore     = errors.New("could not be fetched, and will not be before what is said above is mended")
	errUnregistered  = errors.New("not found: the registry has no such agent (see above)")
	errUndeliverable = errors.New("--check: a delivery would not be delivered (see above)")
	errUnusable      = errors.New("--check: the document cannot be used (see above)")
)

// Run resolves with the worker's configuration and nothing remembered. Neither Postgres nor Redis is asked.
func (c *agentResolveCmd) Run(a *app) error {
	switch {
	case c.URI != nil && (c.Agent != "" || c.Registry != ""):
		return &misuseError{"--uri is resolved without a chain: leave the agent out"}
	case c.URI == nil && c.Agent == "":
		return &misuseError{"name an agent, as in 8453:42, or a URI with --uri"}
	case c.URI == nil && c.Hash != "":
		return &misuseError{"--hash is for --uri: a registration document has no hash on chain"}
	case c.URI != nil:
		return c.uri(a)
	}
	return c.agent(a)
}

// agentResolution is what `worker agent resolve CHAIN:AGENT` found.
type agentResolution struct {
	Agent    string            `json:"agent"`
	Registry string            `json:"identityRegistry"`
	Steps    []resolveStep     `json:"steps"`
	Endpoint *resolvedEndpoint `json:"endpoint,omitempty"`
	Resolved bool              `json:"resolved"`
	Status   store.Status      `json:"status,omitempty"` // that a delivery would get now; none when it would be called
	Reason   retry.Reason      `json:"reason,omitempty"`
	Verdict  string            `json:"verdict"`
	NextStep string            `json:"nextStep,omitempty"` // what a person does about the reason
	Note     string            `json:"note,omitempty"`     // that deliveries do not go by this
	TookMs   float64           `json:"tookMs"`
}

type resolveStep struct {
	What   string  `json:"step"`
	Source string  `json:"source"`
	Found  string  `json:"found"`
	TookMs float64 `json:"tookMs"`
}

// resolvedEndpoint is an endpoint without what may be secret in it.
type resolvedEndpoint struct {
	Transport    string `json:"transport"`
	Address      string `json:"address"` // a URL without query, or stdio:COMMAND without arguments
	ProtocolHint string `json:"protocolHint,omitempty"`
	From         string `json:"from"` // where in the document
	Binding      string `json:"binding,omitempty"`
}

func (c *agentResolveCmd) agent(a *app) error {
	g, err := agentArg{Agent: c.Agent, Registry: c.Registry}.agent(a)
	if err != nil {
		return err
	}
	id, ok := new(big.Int).SetString(g.ID, 10)
	if !ok || id.BitLen() > 256 {
		return &misuseError{fmt.Sprintf("%s is no agent id: it is wider than 256 bits", g.ID)}
	}
	listed, err := a.listedServer(g)
	if err != nil {
		return err
	}
	content, err := service.OpenContent(a.cfg, a.log)
	if err != nil {
		return err
	}
	defer content.Close()
	if !content.HasChain(g.ChainID) {
		return &misuseError{fmt.Sprintf("chain %d has no RPC URL: set RPC_URL_%d", g.ChainID, g.ChainID)}
	}
	began := time.Now()
	t, err := content.Resolver.Resolve(a.ctx, resolver.Agent{ChainID: g.ChainID, Registry: common.HexToAddress(g.Registry), ID: id})
	r := agentResolution{Agent: fmt.Sprintf("%d:%s", g.ChainID, g.ID), Registry: g.Registry, Steps: stepsOf(t), TookMs: milliseconds(time.Since(began))}
	if err == nil {
		r.Endpoint = endpointOf(t)
		if u, bad := url.Parse(t.URL); t.URL != "" && bad == nil {
			err = content.Guard.CheckURL(u) // as far as that can be said without calling it
		}
	}
	again := r.conclude(g, t, err)
	if listed != nil {
		r.Note = "the servers file names this agent, and deliveries go by that first: `worker agent probe`"
	}
	if c.JSON {
		err = writeJSON(a, r)
	} else {
		err = r.print(a, g)
	}
	if c.Check {
		again = checkResolved(r, listed, again)
	}
	return cmp.Or(err, again)
}

// checkResolved is how --check ends: by the servers file where that says how the agent is called, else by the chain.
func checkResolved(r agentResolution, listed *servers.Server, again error) error {
	byFile := false
	if listed != nil {
		_, byFile = listed.Endpoint()
	}
	switch {
	case listed != nil && !listed.Enabled:
		return errUndeliverable
	case byFile:
		return nil
	case again == nil && !r.Resolved:
		return errUndeliverable
	}
	return again
}

// conclude says what it comes to; errNotNow when a delivery would try again, errUnregistered when there is no such agent.
func (r *agentResolution) conclude(g store.Agent, t resolver.Target, err error) error {
	if err == nil {
		r.Resolved = true
		r.Verdict = fmt.Sprintf("a delivery calls %s over %s, %s; %s", r.Endpoint.Address, r.Endpoint.Transport, protocolWords(t.ProtocolHint), bindingWords(t.Binding))
		return nil
	}
	v := retry.Classify(err)
	r.Status, r.Reason = statusOf(v), v.Reason
	r.Verdict = fmt.Sprintf("a delivery %s (%s): %s", endingWords(v), v.Reason, v.Text)
	r.NextStep = v.Reason.NextStep(retry.Subject{ChainID: g.ChainID, AgentID: g.ID, Registry: g.Registry, Endpoint: t.URL})
	return endOf(v)
}

// endOf is how a command ends that found this verdict.
func endOf(v retry.Verdict) error {
	switch {
	case v.Ending == retry.Wait:
		return errNotNow
	case v.Reason == retry.AgentNotFound:
		return errUnregistered
	}
	return nil
}

func (r *agentResolution) print(a *app, g store.Agent) error {
	fmt.Fprintf(a.out, "%s\n\n", nameOf(g))
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tTOOK\tSOURCE\tFOUND")
	for _, s := range r.Steps {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.What, tookWords(s.TookMs), orDash(s.Source), orDash(s.Found))
	}
	fmt.Fprintf(w, "all\t%s\n", tookWords(r.TookMs))
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "\nverdict: %s\n", printable(r.Verdict))
	if err == nil && r.NextStep != "" {
		_, err = fmt.Fprintf(a.out, "next: %s\n", printable(r.NextStep))
	}
	if err == nil && r.Note != "" {
		_, err = fmt.Fprintf(a.out, "note: %s\n", printable(r.Note))
	}
	return err
}

func stepsOf(t resolver.Target) []resolveStep {
	steps := []resolveStep{}
	for _, s := range t.Steps {
		steps = append(steps, resolveStep{What: s.What, Source: s.Source, Found: s.Detail, TookMs: milliseconds(s.Took)})
	}
	return steps
}

func endpointOf(t resolver.Target) *resolvedEndpoint {
	e := &resolvedEndpoint{Transport: t.Transport, Address: withoutQuery(t.URL), ProtocolHint: t.ProtocolHint, From: t.From, Binding: t.Binding}
	if t.URL == "" {
		e.Address = "stdio:" + t.Command
	}
	return e
}

func protocolWords(hint string) string {
	if hint == "" {
		return "with no protocol revision named"
	}
	return "with protocol revision " + hint + " tried first"
}

// bindingWords tell what binds an agent to its endpoint.
func bindingWords(binding string) string {
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

// statusOf is what a delivery with this verdict becomes.
func statusOf(v retry.Verdict) store.Status {
	switch v.Ending {
	case retry.Skip:
		return store.Skipped
	case retry.Reject:
		return store.Rejected
	case retry.Hold:
		return store.Held
	}
	return store.Waiting
}

func endingWords(v retry.Verdict) string {
	switch v.Ending {
	case retry.Skip:
		return "is skipped"
	case retry.Reject:
		return "is rejected"
	case retry.Hold:
		return "is held"
	}
	return "waits and is tried again"
}

// withoutQuery is a URL as anybody may see it: without query, fragment and user information, and otherwise as it is written.
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

func tookWords(ms float64) string { return fmt.Sprintf("%.1f ms", ms) }
