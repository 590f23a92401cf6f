package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/reason"
	"github.com/google/uuid"
)

// The values of Check.Verdict.
const (
	CheckOK      = "ok"
	CheckFault   = "fault"
	CheckSkipped = "skipped"
)

// Check is one rule for servers that receive deliveries, and whether a server follows it.
type Check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Found   string `json:"found"` // what was found and, for a fault, what to do
}

// The names of the checks.
const (
	checkReachable  = "reachable"
	checkProtocol   = "protocol"
	checkTools      = "tools"
	checkSchemas    = "schemas"
	checkFeedback   = "feedback"
	checkRepeat     = "repeat"
	checkBatch      = "batch"
	checkResponse   = "response"
	checkValidation = "validation"
	checkRevocation = "revocation"
	checkUnsigned   = "unsigned"
	checkAltered    = "altered"
	checkErrors     = "errors"
	checkTime       = "time"
)

// checkNames lists the checks in the order in which they run.
var checkNames = []string{checkReachable, checkProtocol, checkTools, checkSchemas, checkFeedback, checkRepeat, checkBatch,
	checkResponse, checkValidation, checkRevocation, checkUnsigned, checkAltered, checkErrors, checkTime}

// receiver is a tool that receives events, and the check that calls it.
type receiver struct {
	check string
	kind  job.Kind
	tool  string // "": that of the kind
}

func (r receiver) name() string { return cmp.Or(r.tool, job.DefaultTool(r.kind)) }

var receivers = []receiver{{checkFeedback, job.KindNewFeedback, ""}, {checkBatch, job.KindNewFeedback, delivery.BatchTool},
	{checkResponse, job.KindResponseAppended, ""}, {checkValidation, job.KindValidationResponse, ""},
	{checkRevocation, job.KindFeedbackRevoked, ""}}

// CheckReport is the result of checking a server.
type CheckReport struct {
	Checks []Check `json:"checks"`
	Faults int     `json:"faults"`
	Sent   bool    `json:"sent"`  // tools were called with samples
	Probe  Probe   `json:"probe"` // the same connection, in the words of a probe
}

// ErrFaults reports that a check found a fault. It leads to exit code 1.
var ErrFaults = errors.New("a check found a fault (see above)")

// End returns the error with which the command ends.
func (r CheckReport) End() error {
	if r.Faults > 0 {
		return ErrFaults
	}
	return nil
}

// CheckRequest selects the server to check.
type CheckRequest struct {
	operator.AgentRef        // the registered agent; with URL, the agent that the samples are about
	URL               string // check the server at this URL; it gets no stored token
	Transport         string // with URL: http (default) or sse
	Send              bool   // call the tools with samples
}

// checker checks one server.
type checker struct {
	*prober
	checks  map[string]Check
	offers  map[string]offer // by check; tools that the server does not offer are missing
	index   uint64           // feedback index of the next sample of a feedback
	first   sample           // the first sample of a feedback
	late    string           // the tool that did not answer in time; no tool is called after it
	slowest time.Duration
}

// offer is a receiving tool that the server offers, with the calls of its samples.
type offer struct {
	tool  string
	calls []mcpcall.Request // one for each sample that fits
	ids   []string          // the deliveryIds of these samples
}

// CheckAgent checks whether a server can receive deliveries. It connects, lists tools and fits samples to their schemas
// as a delivery does. With Send it also calls the tools.
func CheckAgent(ctx context.Context, o *operator.Operator, ask CheckRequest) (CheckReport, error) {
	p, err := prepareProbe(o, ProbeRequest{AgentRef: ask.AgentRef, Kind: string(job.KindNewFeedback), URL: ask.URL,
		Transport: ask.Transport, Send: ask.Send, withoutToken: ask.URL != ""})
	if err != nil {
		return CheckReport{}, err
	}
	defer p.close(ctx)
	c := &checker{prober: p, checks: map[string]Check{}, offers: map[string]offer{}, index: 1 + uint64(rand.Uint32())}
	began := time.Now()
	tools, err := p.connect(ctx)
	c.checkConnection(err)
	if err == nil {
		_, err = p.prepareCall(ctx, tools)
		c.checkTools(ctx, tools)
	}
	if err == nil && ask.Send {
		err = c.sendSamples(ctx)
	}
	p.adviseOAuth(err)
	p.conclude(err)
	p.found.TookMs = milliseconds(time.Since(began))
	p.storeObservation(ctx)
	p.checkDisabled(ctx)
	return c.report(), nil
}

func (c *checker) pass(check, format string, args ...any) {
	c.checks[check] = Check{check, CheckOK, fmt.Sprintf(format, args...)}
}

func (c *checker) skip(check, why string) { c.checks[check] = Check{check, CheckSkipped, why} }

// fail records a fault: what was found, and what the author does about it.
func (c *checker) fail(check string, found any, remedy string) {
	c.checks[check] = Check{check, CheckFault, fmt.Sprintf("%v; %s", found, remedy)}
}

// report returns all checks in order. Checks that did not run are skipped.
func (c *checker) report() CheckReport {
	r := CheckReport{Sent: c.ask.Send, Probe: c.found}
	for _, name := range checkNames {
		check, ran := c.checks[name]
		switch {
		case ran:
		case r.Faults > 0:
			check = Check{name, CheckSkipped, "not checked because of the fault above"}
		default:
			check = Check{name, CheckSkipped, "no tool was called: --send calls the tools with samples"}
		}
		if check.Verdict == CheckFault {
			r.Faults++
		}
		r.Checks = append(r.Checks, check)
	}
	return r
}

// checkConnection judges how connecting and listing the tools ended.
func (c *checker) checkConnection(err error) {
	var call *mcpcall.CallError
	var bad *mcpcall.BadAnswerError
	failed := errors.As(err, &call)
	opened := err == nil || failed && call.Stage == mcpcall.StageList
	foreign := failed && call.Stage == mcpcall.StageOpen && call.Status == 0 && (call.Code != 0 || errors.As(err, &bad))
	if opened || foreign {
		c.pass(checkReachable, "a server answers at %s", c.found.Endpoint.Address)
	}
	switch {
	case err == nil:
		c.pass(checkProtocol, "it speaks MCP revision %s", c.found.Protocol)
	case opened:
		c.pass(checkProtocol, "it answers the MCP handshake")
		c.fail(checkTools, err, "answer tools/list")
	case foreign:
		c.fail(checkProtocol, err, "serve MCP in a revision from 2024-11-05 to 2026-07-28 at exactly this address")
	case retry.Classify(err).Reason == reason.AuthRequired:
		c.fail(checkReachable, err, "accept Herald's signature (HERALD_PUBLIC_URL), or give Herald's operator a credential")
	default:
		c.fail(checkReachable, err, "serve MCP at a public https address without redirects, and register exactly this address")
	}
}

// checkTools finds the receiving tools among the offered ones, and fits samples to their schemas.
func (c *checker) checkTools(ctx context.Context, offered []mcpcall.Tool) {
	var present, missing, problems []string
	for _, r := range receivers {
		o, err := c.fitTool(ctx, r, offered)
		switch {
		case o.tool == "" && r.check == checkFeedback:
			c.fail(checkTools, err, "offer agent.receiveFeedback with the schema of docs/tools")
			return
		case o.tool == "":
			missing = append(missing, r.name())
			c.skip(r.check, "it does not offer "+r.name()+", so Herald does not call that")
			continue
		case err != nil:
			problems = append(problems, o.tool+": "+err.Error())
		}
		present = append(present, o.tool)
		c.offers[r.check] = o
	}

	c.pass(checkTools, "it offers %s", strings.Join(present, ", "))
	if len(missing) > 0 {
		c.pass(checkTools, "it offers %s; %s are optional", strings.Join(present, ", "), strings.Join(missing, ", "))
	}
	if len(problems) > 0 {
		c.fail(checkSchemas, strings.Join(problems, "; "), "copy the schemas of docs/tools, or require less")
		return
	}
	c.pass(checkSchemas, "events with and without a file, tags and a score fit the schemas")
}

// fitTool finds a receiving tool, and fits two samples to its schema: an event that has everything, and one that lacks
// everything that an event may lack. It returns the calls of the samples that fit, and the first error.
func (c *checker) fitTool(ctx context.Context, r receiver, offered []mcpcall.Tool) (o offer, failed error) {
	full, err := newSample(r.kind, c.agent, r.tool, job.Limits{MaxTimeout: c.Settings.CallTimeout, Tools: c.Settings.Tools})
	if err != nil {
		return o, err
	}
	names, err := delivery.ToolNames(full.job, c.Settings.ToolAliases, c.listed)
	if err != nil {
		return o, err
	}
	for i, s := range []sample{full, full.sparse()} {
		s = c.identify(s)
		tool, fitted, err := fitSample(ctx, r, s, names, offered)
		if o.tool = tool.Name; o.tool == "" {
			return o, err
		}
		switch {
		case err == nil:
			o.calls = append(o.calls, mcpcall.Request{Tool: tool.Name, Arguments: fitted.Arguments, Meta: s.callMeta()})
			o.ids = append(o.ids, s.id)
		case failed == nil && i > 0:
			failed = fmt.Errorf("for an event without a file, tags and a score from 0 to 100, %w", err)
		case failed == nil:
			failed = err
		}
	}
	return o, failed
}

// fitSample finds a receiving tool and fits one sample to its schema.
func fitSample(ctx context.Context, r receiver, s sample, names []string,
	offered []mcpcall.Tool) (tool mcpcall.Tool, fitted delivery.Fitted, err error) {
	if r.check != checkBatch {
		return delivery.FitCall(ctx, nil, s.job, s.file, s.id, names, offered)
	}
	tool, _ = mcpcall.Find(offered, names[0], names[1:])
	if delivery.BatchCapacity(tool) < 2 {
		return tool, fitted, errors.New("its schema has no list deliveries for 2 or more, so Herald does not call it")
	}
	fitted, err = delivery.FitBatchItem(ctx, nil, s.job, s.file, s.id, tool)
	return tool, fitted, err
}

// identify gives a sample a random deliveryId. A feedback also gets the next feedback index; other events are about the
// first feedback.
func (c *checker) identify(s sample) sample {
	s.id = uuid.NewString() // version 4: no delivery has such an id
	s.job.FeedbackIndex = c.first.job.FeedbackIndex
	if s.job.Kind == job.KindNewFeedback {
		s.job.FeedbackIndex = c.index
		c.index++
	}
	if s.job.IsRetraction() {
		s.job.Retracts = c.first.id
	}
	if c.first.id == "" {
		c.first = s
	}
	return s
}
