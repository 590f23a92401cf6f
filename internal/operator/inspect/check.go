package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
)

// Check is one rule for servers that receive deliveries, and whether a server follows it.
type Check struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"` // ok, fault or skipped
	Found   string `json:"found"`   // the finding and, for a fault, the remedy
}

// checkNames lists the checks in the order in which they run (docs/agent.md).
var checkNames = []string{"reachable", "protocol", "tools", "schemas", "feedback", "repeat", "batch", "response",
	"validation", "revocation", "size", "unsigned", "altered", "errors", "time"}

// receivers are the tools that receive events, with the check that calls each.
var receivers = []struct {
	check, tool string
	kind        job.Kind
}{{"feedback", tools.Feedback, job.KindNewFeedback}, {"batch", tools.Batch, job.KindNewFeedback},
	{"response", "agent.receiveResponse", job.KindResponseAppended},
	{"validation", "agent.receiveValidation", job.KindValidationResponse},
	{"revocation", "agent.receiveRevocation", job.KindFeedbackRevoked}}

// CheckReport is the result of checking a server.
type CheckReport struct {
	Checks []Check `json:"checks"`
	Faults int     `json:"faults"`
	Sent   bool    `json:"sent"`  // tools were called with samples
	Probe  Probe   `json:"probe"` // of the same connection
}

// checker checks one server.
type checker struct {
	*prober
	checks  map[string]Check
	calls   map[string][]mcpcall.Request // by check: the calls with the samples that fit
	batch   []string                     // deliveryIds of the batch
	first   string                       // deliveryId of the first feedback
	index   uint64                       // its feedback index
	counted uint64                       // feedbacks so far
	late    string                       // the tool that did not answer in time; no tool is called after it
	slowest time.Duration
}

// CheckAgent checks whether a server can receive deliveries. It connects, lists tools and fits samples to their schemas
// as a delivery does. With Send it also calls the tools. A server that ask.URL names gets no stored token.
func CheckAgent(ctx context.Context, o *operator.Operator, ask ProbeRequest) (CheckReport, error) {
	ask.Kind, ask.withoutToken = string(job.KindNewFeedback), ask.URL != ""
	p, err := prepareProbe(o, ask)
	if err != nil {
		return CheckReport{}, err
	}
	defer p.close(ctx)
	c := &checker{prober: p, checks: map[string]Check{}, calls: map[string][]mcpcall.Request{},
		index: 1 + uint64(rand.Int32N(1<<30))}
	began := time.Now()
	tools, err := p.connectAgent(ctx)
	if !p.asked && err != nil && classify.Error(err).Reason == outcome.InternalError {
		return CheckReport{}, err // a fault of this installation
	}
	c.checkConnection(err)
	if err == nil {
		_, err = p.prepareCall(ctx, tools)
		c.checkTools(ctx, tools)
	}
	if err == nil && ask.Send && len(c.calls["feedback"]) > 0 {
		err = c.sendSamples(ctx)
	}
	p.conclude(ctx, err, began)
	return c.report(), nil
}

func (c *checker) pass(check, found string) { c.checks[check] = Check{check, "ok", found} }
func (c *checker) skip(check, why string)   { c.checks[check] = Check{check, "skipped", why} }
func (c *checker) fail(check string, found any, remedy string) {
	if err, ok := found.(error); ok && errors.Is(err, mcpcall.ErrSessionGone) {
		remedy = "serve without sessions, or let each process behind this address know all sessions"
	}
	c.checks[check] = Check{check, "fault", fmt.Sprintf("%v; %s", found, remedy)}
}

// report returns all checks in order. Checks that did not run are skipped.
func (c *checker) report() CheckReport {
	r := CheckReport{Sent: c.ask.Send, Probe: c.found}
	for _, name := range checkNames {
		check, ran := c.checks[name]
		switch {
		case check.Verdict == "fault":
			r.Faults++
		case !ran && r.Faults > 0:
			check = Check{name, "skipped", "not checked because of the fault above"}
		case !ran:
			check = Check{name, "skipped", "no sample was sent"}
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
	foreign := failed && !opened && call.Status == 0 && (call.Code != 0 || errors.As(err, &bad))
	const invalidRequest = -32600
	invalid := failed && !opened && call.Status == http.StatusBadRequest && call.Code == invalidRequest
	if opened || foreign || invalid {
		c.pass("reachable", "a server answers at "+c.found.Endpoint.Address)
	}
	switch {
	case err == nil:
		c.pass("protocol", "it speaks MCP revision "+c.found.Protocol)
	case opened:
		c.pass("protocol", "it answers the MCP handshake")
		c.fail("tools", err, "answer tools/list")
	case invalid && strings.Contains(err.Error(), "already initialized"): // the official SDK for TypeScript
		c.fail("protocol", err, "open a session for each initialize request, also while there is another session")
	case foreign, invalid:
		c.fail("protocol", err, "serve MCP in a revision from 2024-11-05 to 2026-07-28 at exactly this address")
	case classify.Error(err).Reason == outcome.AuthRequired:
		c.fail("reachable", err, c.adviseRefused())
	default:
		c.fail("reachable", err,
			"serve MCP at a public https address without redirects, and register exactly this address")
	}
}

// adviseRefused returns the remedy for a server that refuses this process as its caller.
func (c *checker) adviseRefused() string {
	signed := "did not sign (HERALD_PUBLIC_URL is not set, or no database is available)"
	if c.signs {
		signed = "signed with HERALD_PUBLIC_URL=" + c.Settings.PublicURL
	}
	credential := "or give its operator a credential"
	if c.ask.withoutToken {
		credential = "or register it and check CHAIN:AGENT, because a check of a URL sends no stored token"
	}
	return "this process " + signed + ": accept it, " + credential + "; " +
		"if the server accepts another Herald, only that Herald's operator can check the server"
}

// checkTools finds the receiving tools among the offered ones, and fits samples to their schemas.
func (c *checker) checkTools(ctx context.Context, offered mcpcall.ToolSet) {
	var present, missing, problems []string
	for _, r := range receivers {
		tool, err := c.fitTool(ctx, r.check, r.tool, r.kind, offered)
		switch {
		case tool == "" && r.check == "feedback":
			c.fail("tools", err, "offer agent.receiveFeedback with the schema of docs/tools")
			return
		case tool == "":
			missing = append(missing, r.tool)
			c.skip(r.check, "it does not offer "+r.tool+", so Herald does not call that")
			continue
		case err != nil:
			problems = append(problems, tool+": "+err.Error())
		}
		present = append(present, tool)
	}
	c.pass("tools", fmt.Sprintf("it offers %s; not offered and optional: %s", strings.Join(present, ", "),
		cmp.Or(strings.Join(missing, ", "), "none")))
	c.pass("schemas", "events with and without a file, tags, a position and a score fit the schemas")
	if len(problems) > 0 {
		c.fail("schemas", strings.Join(problems, "; "), "copy the schemas of docs/tools, or require less")
	}
}

// fitTool fits samples to the schema of a receiving tool, and keeps the calls of those that fit. It returns the
// server's name of the tool ("": not offered), and the first error.
func (c *checker) fitTool(ctx context.Context, check, tool string, kind job.Kind,
	offered mcpcall.ToolSet) (string, error) {
	full, err := newSample(kind, c.agent, tool, job.Limits{MaxTimeout: c.Settings.CallTimeout})
	names, barred := tools.Names(full.job, c.Settings.ToolAliases, c.listed)
	if err = cmp.Or(err, barred); err != nil {
		return "", err
	}
	samples := []sample{c.identify(full), c.identify(full.sparse())}
	if check == "batch" {
		return c.fitBatch(names, samples, offered)
	}
	if check == "feedback" {
		samples = append(samples, c.identify(full.withLargeFile()))
	}
	for i, s := range samples {
		found, fitted, fault := tools.FitCall(ctx, nil, s.job, s.file, s.id, names, offered)
		group := check
		if i == 2 {
			group = "size"
		}
		if i == 0 && fault == nil && len(fitted.Arguments) == 0 {
			fault = errors.New("it allows no argument of Herald, so a call would contain none")
		}
		switch {
		case found.Name == "":
			return "", fault
		case group == "size" && fault == nil && fitted.Arguments["fileContent"] == nil:
			c.skip(group, "the schema of "+found.Name+" has no fileContent, so Herald sends no file")
		case fault == nil:
			c.calls[group] = append(c.calls[group],
				mcpcall.Request{Tool: found.Name, Arguments: fitted.Arguments, Meta: s.callMeta()})
		case i == 1:
			fault = fmt.Errorf(
				"for an event without a file, tags, a position on the chain and a score from 0 to 100, %w", fault)
		case i == 2:
			fault = fmt.Errorf("for an event with a file of 2 MiB, %w", fault)
		}
		tool, err = found.Name, cmp.Or(err, fault)
	}
	return tool, err
}

// fitBatch is fitTool for the batch tool, which gets all samples in one call.
func (c *checker) fitBatch(names []string, samples []sample, offered mcpcall.ToolSet) (string, error) {
	tool, _ := mcpcall.Find(offered.Tools, names[0], names[1:])
	var items, about []any
	for _, s := range samples {
		items, about = append(items, s.unfitted()), append(about, s.callMeta()[tools.MetaKey])
		c.batch = append(c.batch, s.id)
	}
	fitted, err := mcpcall.Fit(tool, tools.List(items...))
	switch {
	case err != nil:
		return tool.Name, err
	case len(tool.InputSchema) == 0 || fitted["deliveries"] == nil:
		return tool.Name, errors.New("its schema has no deliveries, so Herald does not call it")
	}
	c.calls["batch"] = []mcpcall.Request{{Tool: tool.Name, Arguments: fitted,
		Meta: map[string]any{tools.MetaKey: about}}}
	return tool.Name, nil
}

// identify gives a sample a new deliveryId. A feedback also gets the next feedback index; other events are about the
// first feedback.
func (c *checker) identify(s sample) sample {
	s.id, s.job.FeedbackIndex = newProbeID(), c.index
	if s.job.Kind == job.KindNewFeedback {
		s.job.FeedbackIndex += c.counted
		c.counted++
	}
	if c.first = cmp.Or(c.first, s.id); s.job.IsRetraction() {
		s.job.Retracts = c.first
	}
	return s
}
