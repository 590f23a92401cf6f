package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
)

type agentProbeCmd struct {
	agentArg
	Kind      string `help:"The sample's kind: ${enum}." enum:"NewFeedback,FeedbackRevoked,ResponseAppended,ValidationResponse" default:"NewFeedback" placeholder:"KIND"`
	Tool      string `help:"The tool to fit it to, when it is not the kind's own; as a job may name it." placeholder:"NAME"`
	Send      bool   `help:"Call the tool with the sample. It is marked: deliveryId 70726f62-6500-8000-8000-000000000000, and probe: true in _meta."`
	URL       string `name:"url" help:"Look at this address instead of the agent's own; nothing is written down then." placeholder:"URL"`
	Transport string `help:"With --url: http (streamable HTTP, default) or sse (HTTP+SSE)." enum:",http,sse" default:"" placeholder:"http|sse"`
	Check     bool   `help:"Exit 1 unless a delivery would be delivered, or with no --send: unless the tool would be called."`
	JSON      bool   `name:"json" help:"As JSON."`
}

// agentProbe is what `worker agent probe` found.
type agentProbe struct {
	Agent     string            `json:"agent"`
	Registry  string            `json:"identityRegistry"`
	Steps     []resolveStep     `json:"steps,omitempty"` // of the chain; none when the servers file or --url names the endpoint
	Endpoint  *resolvedEndpoint `json:"endpoint,omitempty"`
	Server    *probedServer     `json:"server,omitempty"` // none: it was not reached
	Protocol  string            `json:"protocol,omitempty"`
	ListedMs  float64           `json:"listedMs,omitempty"` // connecting, the handshake and the list
	Tools     []store.KnownTool `json:"tools,omitempty"`
	ToolsCut  bool              `json:"toolsCut,omitempty"` // the agent's list is longer than is read
	Kind      job.Kind          `json:"kind"`
	Asked     string            `json:"askedTool"`
	Tool      string            `json:"tool,omitempty"` // what the agent calls it
	Arguments []probedArgument  `json:"arguments,omitempty"`
	Fits      bool              `json:"fits"`
	Answer    *probedAnswer     `json:"answer,omitempty"` // of --send
	Status    store.Status      `json:"status,omitempty"` // that a delivery would get now; none when it would be delivered, or called
	Reason    retry.Reason      `json:"reason,omitempty"`
	Verdict   string            `json:"verdict"`
	NextStep  string            `json:"nextStep,omitempty"` // what a person does about the reason
	Notes     []string          `json:"notes,omitempty"`
	Kept      bool              `json:"kept"` // what was learned is written down
	TookMs    float64           `json:"tookMs"`
}

type probedServer struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type probedAnswer struct {
	IsError    bool            `json:"isError"`
	Unreadable bool            `json:"unreadable,omitempty"`
	Text       string          `json:"text"`
	Result     json.RawMessage `json:"result,omitempty"`
	TookMs     float64         `json:"tookMs"`
}

// prober is one look at an agent.
type prober struct {
	*app
	cmd     *agentProbeCmd
	agent   store.Agent
	sample  sample
	content *service.Content
	listed  *servers.Server // the agent's entry of the servers file; nil: none, or --url
	found   agentProbe
	reached error // why the agent's tools could not be listed
	asked   bool  // the agent was asked for them
	away    error // why there is no store; nil: it has not been looked for, or is there

	authorizer *agentauth.Authorizer // nil: no token is stored for the agent
	auth       *agentauth.Authorization
}

// Run connects to the agent as a delivery would, and shows what a delivery would send. Without --send nothing is called.
func (c *agentProbeCmd) Run(a *app) error {
	p, err := c.prepare(a)
	if err != nil {
		return err
	}
	defer p.content.Close()
	began := time.Now()
	again := p.conclude(p.probe())
	p.found.TookMs = milliseconds(time.Since(began))
	p.keep()
	if p.barred() {
		again = nil // it will be the same the next time
	}
	if c.Check && again == nil && p.found.Status != "" {
		again = errUndeliverable
	}
	if c.JSON {
		err = writeJSON(a, p.found)
	} else {
		err = p.print()
	}
	return cmp.Or(err, again)
}

// prepare refuses what cannot be meant before anything is connected to.
func (c *agentProbeCmd) prepare(a *app) (*prober, error) {
	g, err := c.agent(a)
	if err != nil {
		return nil, err
	}
	if id, ok := new(big.Int).SetString(g.ID, 10); !ok || id.BitLen() > 256 {
		return nil, &misuseError{fmt.Sprintf("%s is no agent id: it is wider than 256 bits", g.ID)}
	}
	p := &prober{app: a, cmd: c, agent: g, found: agentProbe{Agent: fmt.Sprintf("%d:%s", g.ChainID, g.ID), Registry: g.Registry, Kind: job.Kind(c.Kind)}}
	if p.sample, err = newSample(p.found.Kind, g, c.Tool, service.JobLimits(a.cfg)); err != nil {
		return nil, &misuseError{fmt.Sprintf("the sample is refused like a job: %v", err)}
	}
	p.found.Asked = p.sample.job.Action.ToolName
	if err := p.look(); err != nil {
		return nil, err
	}
	p.content, err = service.OpenContent(a.cfg, a.log)
	if err == nil && p.listed == nil && c.URL == "" && !p.content.HasChain(g.ChainID) {
		p.content.Close()
		return nil, &misuseError{fmt.Sprintf("chain %d has no RPC URL: set RPC_URL_%d, or name the agent's address with --url", g.ChainID, g.ChainID)}
	}
	return p, err
}

// look checks --url, or looks the agent up in the servers file.
func (p *prober) look() error {
	switch u, err := url.Parse(p.cmd.URL); {
	case p.cmd.URL == "" && p.cmd.Transport != "":
		return &misuseError{"--transport is for --url"}
	case p.cmd.URL != "" && (err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https"):
		return &misuseError{"--url must be an http or https URL"}
	case p.cmd.URL != "" && u.User != nil:
		return &misuseError{"--url holds a user or password, which no agent is sent"}
	case p.cmd.URL != "":
		return nil
	}
	s, err := p.listedServer(p.agent)
	p.listed = s
	return err
}

// listedServer is what the servers file says about an agent; nil: nothing.
func (a *app) listedServer(g store.Agent) (*servers.Server, error) {
	known, _ := a.cfg.Registries(g.ChainID)
	if a.cfg.ServersFile == "" || common.HexToAddress(g.Registry) != known.Identity {
		return nil, nil // its agents are those of the chain's usual registry
	}
	// What is wrong with other agents' entries is for the doctor to say: this shell may lack what they name of the worker's environment.
	s, ok, err := servers.Find(a.cfg.ServersFile, os.LookupEnv, g.ChainID, g.ID)
	switch {
	case err != nil:
		return nil, fmt.Errorf("HERALD_SERVERS_FILE: %w", err)
	case !ok:
		return nil, nil
	}
	return &s, nil
}

// probe goes as far as a delivery would, and calls only when it was told to.
func (p *prober) probe() error {
	endpoint, err := p.resolve()
	if err != nil {
		return err
	}
	done, err := p.authorize(&endpoint)
	defer done()
	if err != nil {
		return err
	}
	pool, err := mcpcall.NewPool(mcpcall.Config{Guard: p.content.Guard, StdioCommands: p.cfg.StdioCommands, CallTimeout: p.cfg.CallTimeout, Logger: p.log,
		Supervised: true})
	if err != nil {
		return err
	}
	defer p.disconnect(pool)
	tool, err := p.list(pool, &endpoint)
	if err != nil {
		p.adviseOAuth(endpoint, err)
		return err
	}
	args, err := p.fit(tool)
	if err != nil || !p.cmd.Send {
		return err
	}
	err = p.send(pool, &endpoint, tool, args)
	p.adviseOAuth(endpoint, err)
	return err
}

// disconnect ends the connection or the process of the agent.
func (a *app) disconnect(pool *mcpcall.Pool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 15*time.Second)
	defer cancel()
	if err := pool.Close(ctx); err != nil {
		a.log.Warn("the connection to the agent did not end in order", "error", err)
	}
}

// resolve finds the endpoint: --url, the servers file, the chain.
func (p *prober) resolve() (mcpcall.Endpoint, error) {
	if p.cmd.URL != "" {
		e := mcpcall.Endpoint{Transport: cmp.Or(p.cmd.Transport, mcpcall.TransportHTTP), URL: p.cmd.URL}
		p.found.Endpoint = &resolvedEndpoint{Transport: e.Transport, Address: withoutQuery(e.URL), From: "--url"}
		return e, p.guarded(e)
	}
	if p.listed != nil {
		if e, ok := p.listed.Endpoint(); ok {
			p.found.Endpoint = &resolvedEndpoint{Transport: e.Transport, Address: p.listed.Display, From: "the servers file"}
			return e, nil
		}
	}
	if !p.content.HasChain(p.agent.ChainID) {
		return mcpcall.Endpoint{}, retry.Fail(retry.ChainUnconfigured, fmt.Sprintf("the servers file names no endpoint of the agent, and chain %d has no RPC URL: set RPC_URL_%d", p.agent.ChainID, p.agent.ChainID))
	}
	id, _ := new(big.Int).SetString(p.agent.ID, 10) // prepare has read it
	t, err := p.content.Resolver.Resolve(p.ctx, resolver.Agent{ChainID: p.agent.ChainID, Registry: common.HexToAddress(p.agent.Registry), ID: id})
	p.found.Steps = stepsOf(t)
	if err != nil {
		return mcpcall.Endpoint{}, err
	}
	p.found.Endpoint = endpointOf(t)
	e := mcpcall.Endpoint{Transport: t.Transport, URL: t.URL, Command: t.Command, Args: t.Args, ProtocolHint: t.ProtocolHint}
	return e, p.guarded(e)
}

// guarded refuses an address that would be refused when it is dialled, as far as that can be said without doing so.
func (p *prober) guarded(e mcpcall.Endpoint) error {
	if u, err := url.Parse(e.URL); e.URL != "" && err == nil {
		return p.content.Guard.CheckURL(u)
	}
	return nil
}

// list connects, lists the agent's tools and finds the sample's.
func (p *prober) list(pool *mcpcall.Pool, e *mcpcall.Endpoint) (mcpcall.Tool, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.CallTimeout)
	defer cancel()
	began := time.Now()
	var set mcpcall.ToolSet
	err := p.renewing(e, func() (err error) {
		set, err = pool.Tools(ctx, *e, true)
		return err
	})
	p.found.ListedMs, p.asked, p.reached = milliseconds(time.Since(began)), true, err
	var call *mcpcall.CallError
	switch {
	case errors.As(err, &call) && call.Stage == mcpcall.StageList && retry.NotATool(err):
		p.reached = nil // it was; it does not even know tools/list
	case err != nil:
		return mcpcall.Tool{}, err
	}
	p.found.Server, p.found.Protocol, p.found.ToolsCut = &probedServer{set.Server.Name, set.Server.Version}, set.Protocol, set.Cut
	for _, t := range set.Tools {
		p.found.Tools = append(p.found.Tools, store.KnownTool{Name: t.Name, Schema: len(t.InputSchema) > 0})
	}
	return p.find(set.Tools)
}

// find picks the sample's tool as a delivery does: by its name, its aliases, and of those what the servers file lets be called.
func (p *prober) find(tools []mcpcall.Tool) (mcpcall.Tool, error) {
	names := delivery.ToolNames(p.found.Asked, p.cfg.ToolAliases, p.listed)
	if len(names) > 0 {
		if tool, ok := mcpcall.Find(tools, names[0], names[1:]); ok {
			return tool, nil
		}
	}
	return mcpcall.Tool{}, delivery.NoTool(p.sample.job.Kind, p.found.Asked, names, tools)
}

// fit shows what the tool's schema makes of the sample, or why it refuses it.
func (p *prober) fit(tool mcpcall.Tool) (map[string]any, error) {
	p.found.Tool = tool.Name
	fitted, err := delivery.Fit(p.sample.job, p.sample.file, probeDeliveryID, tool)
	p.found.Fits = err == nil
	list, failed := p.sample.compare(fitted.Arguments)
	p.found.Arguments = list
	return fitted.Arguments, cmp.Or(err, failed)
}

// send calls the tool once.
func (p *prober) send(pool *mcpcall.Pool, e *mcpcall.Endpoint, tool mcpcall.Tool, args map[string]any) error {
	ctx, cancel := context.WithTimeout(p.ctx, p.timeout())
	defer cancel()
	began := time.Now()
	var answer mcpcall.Answer
	err := p.renewing(e, func() (err error) {
		answer, err = pool.Call(ctx, *e, mcpcall.Request{Tool: tool.Name, Arguments: args, Meta: p.sample.meta()})
		return err
	})
	if err != nil {
		return err
	}
	p.found.Answer = &probedAnswer{IsError: answer.IsError, Unreadable: answer.Unreadable, Text: answer.Text, Result: answer.Raw, TookMs: milliseconds(time.Since(began))}
	if answer.IsError {
		return retry.Fail(retry.ToolError, "the agent's tool answered the sample with an error: "+short(answer.Text))
	}
	return nil
}

// conclude says what a delivery would come to, and how the command ends.
func (p *prober) conclude(err error) error {
	r := &p.found
	switch {
	case err == nil && p.cmd.Send:
		r.Verdict = "a delivery is delivered: the agent took the sample"
		return nil
	case err == nil:
		r.Verdict = fmt.Sprintf("a delivery calls %s at %s with its arguments fitted like these; nothing was called now (--send calls it with the sample)", r.Tool, r.Endpoint.Address)
		return nil
	}
	v := retry.Classify(err)
	r.Status, r.Reason = statusOf(v), v.Reason
	r.Verdict = fmt.Sprintf("a delivery %s (%s): %s", endingWords(v), v.Reason, v.Text)
	r.NextStep = p.nextStep(v)
	return endOf(v)
}

func (p *prober) note(text string) { p.found.Notes = append(p.found.Notes, text) }

// storePatience is how long a command that can do without a store waits for one.
const storePatience = 5 * time.Second

// errNoStore: neither is one configured, nor does a worker run here.
var errNoStore = errors.New("no database is configured, and no worker runs here")

// storeAtHand is the configured store, or that of the worker that runs on this machine. Nothing is started for it.
func (a *app) storeAtHand() (*openStore, error) {
	if a.cfg.DatabaseURL.IsZero() {
		if _, err := embedded.ReadRunFile(service.DataDir(a.cfg)); err != nil {
			return nil, errNoStore
		}
	}
	brief := *a
	brief.timeout = min(a.timeout, storePatience)
	return brief.dispatching()
}

// keep writes down what was learned, when there is a store. That there is none is no failure.
func (p *prober) keep() {
	if !p.asked || p.cmd.URL != "" {
		return
	}
	learned, ok := p.learned()
	if !ok {
		return
	}
	st, err := p.storeOnce()
	if err != nil {
		p.note("what was learned is not written down: " + err.Error())
		return
	}
	defer st.close()
	if err := st.ObserveAgent(p.ctx, p.agent, learned); err != nil {
		p.note(err.Error())
		return
	}
	p.found.Kept = true
}

// nextStep is what a person does about a verdict on the agent.
func (p *prober) nextStep(v retry.Verdict) string {
	s := retry.Subject{ChainID: p.agent.ChainID, AgentID: p.agent.ID, Registry: p.agent.Registry, Tool: p.found.Asked, Listed: p.listed != nil}
	if p.found.Endpoint != nil {
		s.Endpoint = p.found.Endpoint.Address
	}
	return v.Reason.NextStep(s)
}

// barred makes the verdict that of a disabled agent, if it is one: its deliveries are held before anything else is looked at.
func (p *prober) barred() bool {
	if p.cmd.URL != "" {
		return false // what is looked at is that address
	}
	byFile := p.listed != nil && !p.listed.Enabled
	err := delivery.Disabled(byFile, !byFile && p.disabledRow())
	if err == nil {
		return false
	}
	r := &p.found
	p.note("once it is enabled: " + r.Verdict)
	v := retry.Classify(err)
	r.Status, r.Reason = statusOf(v), v.Reason
	r.Verdict = fmt.Sprintf("a delivery %s (%s): %s", endingWords(v), v.Reason, v.Text)
	r.NextStep = p.nextStep(v)
	return true
}

// disabledRow tells whether the agent's row disables it, as far as there is a store to ask.
func (p *prober) disabledRow() bool {
	st, err := p.storeOnce()
	if err != nil {
		return false // keep says why
	}
	defer st.close()
	r, err := st.AgentRow(p.ctx, p.agent)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		p.note(err.Error())
	}
	return err == nil && !r.Enabled
}

// learned is what was found out about the agent; false when it was not the agent that failed.
func (p *prober) learned() (store.AgentObservation, bool) {
	l := store.AgentObservation{Endpoint: p.found.Endpoint.Address, State: store.StateConnected}
	if p.reached == nil {
		l.Protocol, l.ServerInfo, l.Tools = p.found.Protocol, asJSON(p.found.Server), store.ToolList(p.found.Tools)
		return l, true
	}
	v := retry.Classify(p.reached)
	l.State, l.Error = store.StateFailed, v.Text
	if v.Reason == retry.AuthRequired {
		l.State = store.StateNeedsAuth
	}
	return l, v.AgentFault
}

// timeout is how long a delivery waits for the agent's answer.
func (p *prober) timeout() time.Duration {
	if p.listed != nil && p.listed.Timeout > 0 {
		return min(p.cfg.CallTimeout, p.listed.Timeout)
	}
	return p.cfg.CallTimeout
}
