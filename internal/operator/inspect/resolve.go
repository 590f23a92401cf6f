// Package inspect runs the steps of a delivery for an agent or a document, and reports how a delivery would end.
// Resolve resolves an agent from the registry to its endpoint, ResolveURI fetches one document, and ProbeAgent connects
// to the agent, lists its tools and fits a sample to one of them. CheckAgent does the same and reports each rule for
// receivers.
//
// A tool is called only with Send. A probe or check stores its observation of the agent if a store is available, as a
// delivery does. The code that decides is the code of deliveries: resolver, auth, tools.FitCall and
// classify.Error.
package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Errors with which a command ends after it printed its result. They lead to exit code 1.
var (
	// ErrNotNow: a delivery would wait and try again.
	ErrNotNow = errors.New("could not be fetched (see above): try again later")
	// errNoAnswer: a delivery would wait and try again, because the agent did not answer as it must.
	errNoAnswer = errors.New("the agent did not take a delivery (see above): try again later")
	// errNotBefore: a delivery would be held.
	errNotBefore = errors.New("could not be fetched, and will not be before the fault above is corrected")
	// errUnregistered: the identity registry has no such agent.
	errUnregistered = errors.New("not found: the registry has no such agent (see above)")
	// ErrUndeliverable: with --check, something would keep a delivery from being delivered.
	ErrUndeliverable = errors.New("--check: a delivery would not be delivered (see above)")
	// errUnusable: with --check, the document is neither a usable registration nor a usable feedback file.
	errUnusable = errors.New("--check: the document cannot be used (see above)")
)

// Resolution is the result of resolving an agent.
type Resolution struct {
	Agent    string    `json:"agent"`
	Registry string    `json:"identityRegistry"`
	Steps    []Step    `json:"steps"`
	Endpoint *Endpoint `json:"endpoint,omitempty"`
	Resolved bool      `json:"resolved"`
	Outlook
	Note   string  `json:"note,omitempty"` // another setting that decides, or a gap in the verdict
	TookMs float64 `json:"tookMs"`

	Name   string          `json:"-"` // of the agent, for use in a sentence
	listed *servers.Server // nil if the servers file does not list the agent
	barred error           // the failure of each delivery to the agent (operator.JudgeAgent)
}

// Outlook is how a delivery would end now, with advice for the operator.
type Outlook struct {
	Status   outcome.Status `json:"status,omitempty"` // empty if it would be delivered or called
	Reason   outcome.Reason `json:"reason,omitempty"`
	Verdict  string         `json:"verdict"`
	NextStep string         `json:"nextStep,omitempty"`

	again error // error of the command: a delivery would try again, or the agent does not exist
}

// expect returns the outlook of a delivery with the verdict v.
func expect(v outcome.Verdict, s outcome.Subject) Outlook {
	o := Outlook{Status: v.Ending, Reason: v.Reason, NextStep: outcome.NextStep(v.Reason, s)}
	becomes := "is " + string(v.Ending)
	switch {
	case v.Ending == outcome.Waiting:
		becomes, o.again = "waits and is tried again", ErrNotNow
	case v.Reason == outcome.AgentNotFound:
		o.again = errUnregistered
	}
	o.Verdict = fmt.Sprintf("a delivery %s (%s): %s", becomes, v.Reason, v.Text)
	return o
}

// End returns the error with which the command ends. With check it also fails if a delivery would not be delivered.
func (o Outlook) End(check bool) error {
	if check && o.again == nil && o.Status != "" {
		return ErrUndeliverable
	}
	return o.again
}

// Step is one step of the resolution of an agent.
type Step struct {
	What   string  `json:"step"`
	Source string  `json:"source"`
	Found  string  `json:"found"`
	TookMs float64 `json:"tookMs"`
}

// Endpoint is an agent's endpoint without parts that may be secret.
type Endpoint struct {
	Transport    string `json:"transport"`
	Address      string `json:"address"` // a URL without query, or stdio:COMMAND without arguments
	ProtocolHint string `json:"protocolHint,omitempty"`
	From         string `json:"from"` // location in the document
	Binding      string `json:"binding,omitempty"`
}

// Resolve resolves an agent with the worker's settings and empty caches. Without a store, it adds
// a note that the agent may be disabled.
func Resolve(ctx context.Context, o *operator.Operator, ref operator.AgentRef) (r Resolution, err error) {
	g, err := o.ParseRef(ref)
	if err != nil {
		return r, err
	}
	id, err := operator.ResolverAgent(g)
	if err != nil {
		return r, err
	}
	listed, err := o.ListedServer(g)
	if err != nil {
		return r, err
	}
	s, away := o.StoreAtHand(ctx)
	if away == nil {
		defer s.Close()
	}
	barred, err := judgeAgent(ctx, o, s, g)
	if err != nil {
		return r, err
	}
	content, err := o.Backend.OpenContent()
	if err != nil {
		return r, err
	}
	defer content.Close()
	if !content.HasChain(g.ChainID) {
		return r, operator.NewMisuse("chain %d has no RPC URL: set RPC_URL_%d", g.ChainID, g.ChainID)
	}

	began := time.Now()
	t, err := content.Resolver.Resolve(ctx, id)
	r = Resolution{Agent: g.String(), Registry: g.Registry, Steps: describeSteps(t),
		TookMs: milliseconds(time.Since(began)), Name: operator.DescribeAgent(g), listed: listed, barred: barred}
	if err == nil {
		r.Endpoint = describeEndpoint(t)
		err = checkAddress(content.Guard, t.URL)
	}
	r.setVerdict(g, t, err)
	if listed != nil {
		r.Note = "the servers file names this agent, and deliveries go by that first: `worker agent probe`"
	}
	switch {
	case barred != nil:
		r.Note = "otherwise: " + r.Verdict
		r.Outlook = expect(classify.Error(barred), r.describeSubject(g, t))
	case away != nil && r.Note == "":
		r.Note = "whether an operator disabled the agent is not known: " + away.Error()
	}
	return r, nil
}

// judgeAgent returns the failure of each delivery to the agent (operator.JudgeAgent). Without a store (nil), it goes by
// the operator's files alone.
func judgeAgent(ctx context.Context, o *operator.Operator, s *operator.Session, g erc8004.Agent) (failure, err error) {
	row := records.AgentRow{Enabled: true}
	if s != nil {
		switch r, missed := s.AgentRow(ctx, g); {
		case missed == nil:
			row = r
		case !errors.Is(missed, ledger.ErrNotFound):
			err = missed
		}
	}
	failure, invalid := o.JudgeAgent(g, row)
	return failure, cmp.Or(invalid, err)
}

// checkAddress returns an error if dialling the address would certainly be refused. It does not dial or resolve it.
func checkAddress(guard *netguard.Guard, address string) error {
	u, err := url.Parse(address)
	if address == "" || err != nil {
		return nil
	}
	return guard.CheckURL(u)
}

// End returns the error with which the command ends. With check it also fails if a delivery would not call the agent.
// The servers file decides that if it names the agent's endpoint, else the chain does.
func (r Resolution) End(check bool) error {
	byFile := false
	if r.listed != nil {
		_, byFile = r.listed.Endpoint()
	}
	switch {
	case !check:
		return r.again
	case r.barred != nil:
		return ErrUndeliverable
	case byFile:
		return nil
	}
	return r.Outlook.End(check)
}

// setVerdict sets the verdict from the target and the error of the resolution.
func (r *Resolution) setVerdict(g erc8004.Agent, t resolver.Target, err error) {
	if err == nil {
		r.Resolved = true
		r.Verdict = fmt.Sprintf("a delivery calls %s over %s, %s; %s", r.Endpoint.Address, r.Endpoint.Transport,
			describeHint(t.ProtocolHint), t.DescribeBinding())
		return
	}
	r.Outlook = expect(classify.Error(err), r.describeSubject(g, t))
}

// describeSubject returns the agent and its endpoint, for the text of a failure.
func (r *Resolution) describeSubject(g erc8004.Agent, t resolver.Target) outcome.Subject {
	return outcome.Subject{ChainID: g.ChainID, Agent: g.Argument(), Registry: g.Registry, Endpoint: t.URL,
		Listed: r.listed != nil, Shower: "resolve"}
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

// withoutQuery removes query, fragment and user information from a URL, so that it can be shown. The rest keeps its
// spelling.
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
