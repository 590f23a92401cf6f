package inspect

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Probe is the result of probing an agent.
type Probe struct {
	Agent     string              `json:"agent"`
	Registry  string              `json:"identityRegistry"`
	Steps     []Step              `json:"steps,omitempty"` // of the resolution; none if the chain was not asked
	Endpoint  *Endpoint           `json:"endpoint,omitempty"`
	Server    *mcpcall.ServerInfo `json:"server,omitempty"` // nil if it was not reached
	Protocol  string              `json:"protocol,omitempty"`
	ListedMs  float64             `json:"listedMs,omitempty"` // time for connecting, the handshake and the list
	Tools     []ledger.KnownTool  `json:"tools,omitempty"`
	ToolsCut  bool                `json:"toolsCut,omitempty"` // the agent's list is longer than the part that was read
	Kind      job.Kind            `json:"kind"`
	Asked     string              `json:"askedTool"`
	Tool      string              `json:"tool,omitempty"` // the name that the agent uses
	Arguments []ProbedArgument    `json:"arguments,omitempty"`
	Fits      bool                `json:"fits"`
	Answer    *ProbedAnswer       `json:"answer,omitempty"` // with ProbeRequest.Send
	Outlook
	Notes  []string `json:"notes,omitempty"`
	Kept   bool     `json:"kept"` // the observation was stored
	TookMs float64  `json:"tookMs"`

	Name string `json:"-"` // of the agent, for use in a sentence
}

// ProbedAnswer is the answer of the agent's tool to the sample.
type ProbedAnswer struct {
	IsError    bool            `json:"isError"`
	Unreadable bool            `json:"unreadable,omitempty"`
	Text       string          `json:"text"`
	Result     json.RawMessage `json:"result,omitempty"`
	TookMs     float64         `json:"tookMs"`
}

// ProbeRequest selects the agent and the sample of a probe.
type ProbeRequest struct {
	operator.AgentRef
	Kind      string `help:"The sample's kind: ${enum}. Default: ${default}." enum:"NewFeedback,FeedbackRevoked,ResponseAppended,ValidationResponse" default:"NewFeedback" placeholder:"KIND"`
	Tool      string `help:"The tool to fit it to, when it is not the kind's own; as a job may name it." placeholder:"NAME"`
	Send      bool   `help:"Call the tool with the sample. It is marked: deliveryId 70726f62-6500-8000-8000-000000000000, and probe: true in _meta."`
	URL       string `name:"url" help:"Probe this address instead of the agent's own, and record nothing." placeholder:"URL"`
	Transport string `help:"With --url: http (streamable HTTP, default) or sse (HTTP+SSE)." enum:",http,sse" default:"" placeholder:"http|sse"`

	withoutToken bool // send no stored token
}

// prober is one probe of an agent.
type prober struct {
	*operator.Operator
	ask     ProbeRequest
	agent   erc8004.Agent
	sample  sample
	content *operator.Content
	listed  *servers.Server // the agent's entry of the servers file; nil if there is none, or with --url
	found   Probe
	pool    *mcpcall.Pool // nil until it is opened
	reached error         // error of listing the agent's tools
	asked   bool          // the agent's tools were requested

	store *operator.Session // nil if it was not opened, or cannot be
	away  error             // why it cannot be opened

	authorizer *auth.Authorizer // nil if no token is stored for the agent
	auth       *auth.Authorization
	signs      bool // requests are signed
}

// RequestTimeout bounds a probe or a check that was asked for over HTTP.
const RequestTimeout = 50 * time.Second

// ProbeAgent connects to the agent as a delivery would, and shows the arguments that a delivery would send. It calls
// the tool only with Send.
func ProbeAgent(ctx context.Context, o *operator.Operator, ask ProbeRequest) (Probe, error) {
	p, err := prepareProbe(o, ask)
	if err != nil {
		return Probe{}, err
	}
	defer p.close(ctx)
	began := time.Now()
	p.conclude(ctx, p.probeAgent(ctx), began)
	return p.found, nil
}

// prepareProbe validates the request before anything is connected.
func prepareProbe(o *operator.Operator, ask ProbeRequest) (*prober, error) {
	g, err := o.ParseRef(ask.AgentRef)
	if err != nil {
		return nil, err
	}
	if _, err := operator.ResolverAgent(g); err != nil {
		return nil, err
	}
	p := &prober{Operator: o, ask: ask, agent: g,
		found: Probe{Agent: g.String(), Registry: g.Registry, Kind: job.Kind(ask.Kind),
			Name: operator.DescribeAgent(g)}}
	limits := job.Limits{MaxTimeout: o.Settings.CallTimeout, Tools: o.Settings.Tools}
	if p.sample, err = newSample(p.found.Kind, g, ask.Tool, limits); err != nil {
		return nil, operator.NewMisuse("the sample is refused like a job: %v", err)
	}
	p.found.Asked = p.sample.job.Action.ToolName
	if err := p.checkURL(); err != nil {
		return nil, err
	}
	p.content, err = o.Backend.OpenContent()
	if err == nil && p.listed == nil && ask.URL == "" && !p.content.HasChain(g.ChainID) {
		p.content.Close()
		return nil, operator.NewMisuse(
			"chain %d has no RPC URL: set RPC_URL_%d, or name the agent's address with --url", g.ChainID, g.ChainID)
	}
	return p, err
}

// checkURL validates --url. Without --url it reads the agent's entry of the servers file.
func (p *prober) checkURL() (err error) {
	switch u, err := url.Parse(p.ask.URL); {
	case p.ask.URL == "" && p.ask.Transport != "":
		return operator.NewMisuse("--transport is for a URL")
	case p.ask.URL != "" && (err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https"):
		return operator.NewMisuse("the URL must be an http or https URL")
	case p.ask.URL != "" && u.User != nil:
		return operator.NewMisuse("the URL holds a user or password, which no agent is sent")
	case p.ask.URL != "":
		return nil
	}
	p.listed, err = p.ListedServer(p.agent)
	return err
}

// probeAgent runs the steps of a delivery. It calls the tool only with Send.
func (p *prober) probeAgent(ctx context.Context) error {
	tools, err := p.connectAgent(ctx)
	var args map[string]any
	if err == nil {
		args, err = p.prepareCall(ctx, tools)
	}
	if err == nil && p.ask.Send {
		err = p.callTool(ctx, args)
	}
	return err
}

// connectAgent finds the agent's endpoint, connects as a delivery does, and lists the agent's tools.
func (p *prober) connectAgent(ctx context.Context) (mcpcall.ToolSet, error) {
	endpoint, err := p.findEndpoint(ctx)
	if err != nil {
		return mcpcall.ToolSet{}, err
	}
	if err := p.authorize(ctx, endpoint); err != nil {
		return mcpcall.ToolSet{}, err
	}
	calls := mcpcall.Config{Guard: p.content.Guard, StdioCommands: p.Settings.StdioCommands,
		CallTimeout: p.Settings.CallTimeout, Logger: p.Logger, Supervised: true}
	if err := p.openSigner(ctx, &calls); err != nil {
		return mcpcall.ToolSet{}, err
	}
	if p.pool, err = mcpcall.NewPool(calls); err != nil {
		return mcpcall.ToolSet{}, err
	}
	return p.listTools(ctx)
}

// findEndpoint returns the endpoint from --url, else from the servers file, else from the chain.
func (p *prober) findEndpoint(ctx context.Context) (mcpcall.Endpoint, error) {
	if p.ask.URL != "" {
		e := mcpcall.Endpoint{Transport: cmp.Or(p.ask.Transport, mcpcall.TransportHTTP), URL: p.ask.URL}
		p.found.Endpoint = &Endpoint{Transport: e.Transport, Address: withoutQuery(e.URL), From: "--url"}
		return e, checkAddress(p.content.Guard, e.URL)
	}
	if p.listed != nil {
		if e, ok := p.listed.Endpoint(); ok {
			p.found.Endpoint = &Endpoint{Transport: e.Transport, Address: p.listed.Display, From: "the servers file"}
			return e, nil
		}
	}
	if !p.content.HasChain(p.agent.ChainID) {
		return mcpcall.Endpoint{}, outcome.Fail(outcome.ChainUnconfigured,
			fmt.Sprintf("the servers file names no endpoint of the agent, and chain %d has no RPC URL: set RPC_URL_%d",
				p.agent.ChainID, p.agent.ChainID))
	}
	agent, err := operator.ResolverAgent(p.agent)
	if err != nil {
		return mcpcall.Endpoint{}, err
	}
	t, err := p.content.Resolver.Resolve(ctx, agent)
	p.found.Steps = describeSteps(t)
	if err != nil {
		return mcpcall.Endpoint{}, err
	}
	p.found.Endpoint = describeEndpoint(t)
	e := mcpcall.Endpoint{Transport: t.Transport, URL: t.URL, Command: t.Command, Args: t.Args,
		ProtocolHint: t.ProtocolHint}
	return e, checkAddress(p.content.Guard, e.URL)
}

// listTools connects to the agent and lists its tools.
func (p *prober) listTools(ctx context.Context) (mcpcall.ToolSet, error) {
	ctx, cancel := mcpcall.WithTimeout(ctx, p.Settings.CallTimeout)
	defer cancel()
	began := time.Now()
	var set mcpcall.ToolSet
	err := p.withTokenRefresh(ctx, func(ctx context.Context, e mcpcall.Endpoint) (err error) {
		set, err = p.pool.Tools(ctx, e, true)
		return err
	})
	p.found.ListedMs, p.asked, p.reached = milliseconds(time.Since(began)), true, err
	switch {
	case tools.ListsNothing(err):
		p.reached = nil // it was reached
	case err != nil:
		return mcpcall.ToolSet{}, err
	}
	p.found.Server, p.found.Protocol, p.found.ToolsCut = &set.Server, set.Protocol, set.Cut
	p.found.Tools = tools.Known(set.Tools)
	return set, nil
}

// prepareCall selects the tool as a delivery does, and fits the sample to the tool's input schema. It records the
// fitted arguments.
func (p *prober) prepareCall(ctx context.Context, offered mcpcall.ToolSet) (map[string]any, error) {
	names, err := tools.Names(p.sample.job, p.Settings.ToolAliases, p.listed)
	if err != nil {
		return nil, err
	}
	tool, fitted, err := tools.FitCall(ctx, nil, p.sample.job, p.sample.file, p.sample.id, names, offered)
	if tool.Name == "" {
		return nil, err
	}
	p.found.Tool, p.found.Fits = tool.Name, err == nil
	p.found.Arguments = p.sample.compareArguments(fitted.Arguments)
	return fitted.Arguments, err
}

// callTool calls the tool with the sample.
func (p *prober) callTool(ctx context.Context, args map[string]any) error {
	answer, took, err := p.send(ctx, mcpcall.Request{Tool: p.found.Tool, Arguments: args, Meta: p.sample.callMeta()})
	if err == nil || answer.IsError {
		p.found.Answer = &ProbedAnswer{IsError: answer.IsError, Unreadable: answer.Unreadable, Text: answer.Text,
			Result: answer.Raw, TookMs: milliseconds(took)}
	}
	return err
}

// send calls a tool as a delivery does. If the tool answers with an error, send returns the answer and an error.
func (p *prober) send(ctx context.Context, r mcpcall.Request) (answer mcpcall.Answer, took time.Duration, err error) {
	ctx, cancel := mcpcall.WithTimeout(ctx, p.callTimeout())
	defer cancel()
	began := time.Now()
	err = p.withTokenRefresh(ctx, func(ctx context.Context, e mcpcall.Endpoint) (err error) {
		answer, err = p.pool.Call(ctx, e, r)
		return err
	})
	if err == nil && answer.IsError {
		err = outcome.Fail(outcome.ToolError,
			"the agent's tool answered the sample with an error: "+text.Shorten(answer.Text))
	}
	return answer, time.Since(began), err
}

// conclude sets the verdict from the error with which the probe ended, and stores the observation of the agent.
func (p *prober) conclude(ctx context.Context, err error, began time.Time) {
	p.adviseOAuth(err)
	r := &p.found
	switch {
	case err == nil && p.ask.Send:
		r.Verdict = "a delivery is delivered: the agent took the sample"
	case err == nil:
		r.Verdict = fmt.Sprintf(
			"a delivery calls %s at %s with its arguments fitted like these; nothing was called now",
			r.Tool, r.Endpoint.Address)
	default:
		p.expect(classify.Error(err))
	}
	r.TookMs = milliseconds(time.Since(began))
	p.storeObservation(ctx)
	p.checkDisabled(ctx)
}

// expect sets the outlook to that of a delivery with the verdict v.
func (p *prober) expect(v outcome.Verdict) {
	r := &p.found
	s := outcome.Subject{ChainID: p.agent.ChainID, Tool: r.Asked,
		Agent: p.agent.Argument(), Registry: p.agent.Registry,
		Listed: p.listed != nil, Shower: "probe"}
	if r.Endpoint != nil {
		s.Endpoint = r.Endpoint.Address
	}
	r.Outlook = expect(v, s)
	if p.asked && r.again == ErrNotNow { // the agent was found, and its tools or its tool were asked for
		r.again = errNoAnswer
	}
}

func (p *prober) addNote(text string) { p.found.Notes = append(p.found.Notes, text) }

// storeObservation stores the observation of the agent. If there is no store, it only adds a note.
func (p *prober) storeObservation(ctx context.Context) {
	if !p.asked || p.ask.URL != "" {
		return
	}
	seen, ok := p.observation()
	if !ok {
		return
	}
	if err := p.openOnce(ctx); err != nil {
		p.addNote("the results are not stored: " + err.Error())
		return
	}
	if err := p.store.ObserveAgent(ctx, p.agent, seen); err != nil {
		p.addNote(err.Error())
		return
	}
	p.found.Kept = true
}

// checkDisabled replaces the verdict if the agent is disabled, or a filter skips all its events. Deliveries of such an
// agent are held or skipped after their event is checked and before the agent is resolved.
func (p *prober) checkDisabled(ctx context.Context) {
	if p.ask.URL != "" {
		return // the probe is about that address, not the agent
	}
	_ = p.openOnce(ctx) // storeObservation reports the error
	failure, err := judgeAgent(ctx, p.Operator, p.store, p.agent)
	if err != nil {
		p.addNote(err.Error())
	}
	if failure != nil {
		p.addNote("otherwise: " + p.found.Verdict)
		p.expect(classify.Error(failure))
	}
}

// observation returns the probe's observation of the agent. It returns false if the failure was not the agent's.
func (p *prober) observation() (records.AgentObservation, bool) {
	l := records.AgentObservation{Endpoint: p.found.Endpoint.Address, State: records.StateConnected}
	if p.reached == nil {
		l.Protocol, l.Tools = p.found.Protocol, ledger.ToolList(p.found.Tools)
		l.ServerInfo, _ = json.Marshal(p.found.Server) // cannot fail: it has two strings
		return l, true
	}
	v := classify.Error(p.reached)
	l.State, l.Error = records.StateFailed, v.Text
	if v.Reason == outcome.AuthRequired {
		l.State = records.StateNeedsAuth
	}
	return l, v.AgentFault
}

// callTimeout returns how long a delivery waits for the agent's answer.
func (p *prober) callTimeout() time.Duration {
	if p.listed != nil && p.listed.Timeout > 0 {
		return min(p.Settings.CallTimeout, p.listed.Timeout)
	}
	return p.Settings.CallTimeout
}
