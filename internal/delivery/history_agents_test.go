package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/google/uuid"
)

// The agents, the chain and the gateways as seen by one process. The seed decides an agent's reaction to each call of a
// delivery.

func (p *process) Resolve(ctx context.Context, a resolver.Agent) (resolver.Target, error) {
	d := p.h.dice("resolve", a.ID.String())
	took := time.Duration(d.Float64() * float64(p.h.tempo.latency))
	if d.Float64() < .08 { // a slow chain or gateway: the lease must be checked again
		took = time.Duration(d.Float64() * float64(p.h.tempo.lease))
	}
	if err := p.pause(ctx, took); err != nil {
		return resolver.Target{}, &node.UnavailableError{ChainID: a.ChainID, Op: "tokenURI", Err: err}
	}
	if d.Float64() < .02 {
		return resolver.Target{}, &node.UnavailableError{ChainID: a.ChainID, Op: "tokenURI", Err: errNoAnswer}
	}
	return resolver.Target{Transport: "http", URL: "https://agent" + a.ID.String() + ".example/mcp", Binding: resolver.BoundByDomain}, nil
}

func (p *process) Fetch(ctx context.Context, uri string, _ int64) (ipfs.Document, error) {
	d := p.h.dice("fetch", uri)
	if err := p.pause(ctx, time.Duration(d.Float64()*float64(p.h.tempo.latency))); err != nil {
		return ipfs.Document{}, &ipfs.UnavailableError{URI: uri, Err: err}
	}
	if d.Float64() < .5 {
		return ipfs.Document{}, &ipfs.UnavailableError{URI: uri, Err: errNoAnswer}
	}
	return ipfs.Document{Bytes: []byte(`{}`), Source: ipfs.SourceCID}, nil
}

func (p *process) FetchAnew(ctx context.Context, uri string, limit int64) (ipfs.Document, error) {
	return p.Fetch(ctx, uri, limit)
}

func (p *process) Tools(ctx context.Context, _ mcpcall.Endpoint, _ bool) (mcpcall.ToolSet, error) {
	if err := p.pause(ctx, p.h.some("tools", strconv.Itoa(p.name), p.h.tempo.latency)); err != nil {
		return mcpcall.ToolSet{}, &mcpcall.CallError{Stage: mcpcall.StageList, Err: err}
	}
	offered := mcpcall.ToolSet{Tools: []mcpcall.Tool{{Name: "agent.receiveFeedback"}}, Protocol: "2025-06-18"}
	if p.h.batches {
		offered.Tools = append(offered.Tools, mcpcall.Tool{Name: tools.Batch, InputSchema: fmt.Appendf(nil, batchSchema, 5)})
	}
	return offered, nil
}

// manner is an agent's reaction to a call.
type manner struct {
	name   string
	weight float64
	from   float64 // earliest answer, as a fraction of the call's timeout
	to     float64 // latest answer; more than 1: after the timeout
	answer func() (mcpcall.Answer, error)
	reads  bool // the request was written
	ok     bool // the answer says that the agent accepted the call; a slow machine may still read one that is late
	known  bool // the process that gets the answer knows whether the agent accepted the call
}

func httpStatus(code int, wait time.Duration) func() (mcpcall.Answer, error) {
	return func() (mcpcall.Answer, error) {
		return mcpcall.Answer{}, &mcpcall.CallError{Stage: mcpcall.StageCall, Status: code, RetryAfter: wait, Written: true, Err: errors.New(http.StatusText(code))}
	}
}

func says(text string, failed bool) func() (mcpcall.Answer, error) {
	return func() (mcpcall.Answer, error) {
		return mcpcall.Answer{Raw: []byte(`{"content":[{"type":"text","text":"` + text + `"}]}`), Text: text, IsError: failed, Protocol: "2025-06-18"}, nil
	}
}

func breaks(written bool) func() (mcpcall.Answer, error) {
	return func() (mcpcall.Answer, error) {
		return mcpcall.Answer{}, &mcpcall.CallError{Stage: mcpcall.StageCall, Written: written, Err: errors.New("connection reset")}
	}
}

var manners = []manner{
	{"takes it", .33, .01, .3, says("thanks", false), true, true, true},
	{"takes it slowly", .24, .3, .99, says("thanks", false), true, true, true},
	{"takes it too slowly", .08, 1.1, 2, says("thanks", false), true, true, false},
	{"fails", .12, .01, .3, httpStatus(http.StatusInternalServerError, 0), true, false, false},
	{"resets", .06, .01, .5, breaks(true), true, false, false},
	{"is not there", .06, .01, .1, breaks(false), false, false, true},
	{"is busy", .05, .01, .1, httpStatus(http.StatusTooManyRequests, time.Second), true, false, true},
	{"refuses", .03, .01, .3, says("no", true), true, false, true},
	{"wants a token", .03, .01, .1, httpStatus(http.StatusUnauthorized, 0), true, false, true},
}

// manner draws the agent's reaction to the next call of a delivery.
func (h *history) manner(id uuid.UUID) (manner, time.Duration) {
	d := h.dice("manner", id.String())
	x := d.Float64()
	m := manners[0]
	for _, m = range manners {
		if x -= m.weight; x < 0 {
			break
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.hopeless[id]:
		m = manners[3]
	case m.name == "is busy" && h.tempo.unit < time.Second:
		m = manners[5] // after a 429 the worker waits a minute, which is a minute of real time there
	}
	return m, time.Duration(float64(h.tempo.call) * (m.from + (m.to-m.from)*d.Float64()))
}

// Call calls an agent's tool. The agent answers even if the process no longer exists.
func (p *process) Call(ctx context.Context, _ mcpcall.Endpoint, r mcpcall.Request) (mcpcall.Answer, error) {
	lost := func(written bool, err error) (mcpcall.Answer, error) {
		return mcpcall.Answer{}, &mcpcall.CallError{Stage: mcpcall.StageCall, Written: written, Timeout: errors.Is(err, context.DeadlineExceeded), Err: err}
	}
	list, isBatch := r.Meta[tools.MetaKey].([]any)
	sent, _ := r.Arguments["deliveries"].([]any)
	if !isBatch {
		list, sent = []any{r.Meta[tools.MetaKey]}, []any{r.Arguments}
	}
	ids := make([]uuid.UUID, len(list))
	for i, about := range list {
		ids[i] = uuid.MustParse(about.(map[string]any)["id"].(string))
	}
	id := ids[0]
	p.at("secured", id)
	if err := p.pause(ctx, p.h.some("connect", id.String(), p.h.tempo.latency)); err != nil {
		return lost(false, err) // nothing was written yet
	}
	if isBatch && p.h.dice("refuses the batch", id.String()).Float64() < .1 {
		p.h.count("batch refused")
		return mcpcall.Answer{}, &mcpcall.CallError{Stage: mcpcall.StageCall, Code: -32602, Written: true, Err: errors.New("too many")}
	}
	m, after := p.h.manner(id)
	answer := m.answer
	hows := make([]manner, len(ids))
	for i := range hows {
		hows[i] = m
	}
	if isBatch && m.ok {
		answer = p.h.answerBatch(ids, hows)
	}
	heads := len(ids)
	if !m.reads {
		heads = 1 // the agent received nothing, so the members are given back
	}
	calls := p.h.callsAll(p, ids[:heads], list, hows, ctx)
	for i, item := range sent {
		if said := fmt.Sprint(item.(map[string]any)["deliveryId"]); said != ids[i].String() {
			p.h.violated(ids[i], "the call says deliveryId %s", said)
		}
	}
	ended := func(heard bool) {
		for _, c := range calls {
			p.h.ended(c, heard)
		}
	}
	p.at("calling", id)
	answered := time.NewTimer(after)
	defer answered.Stop()
	heard := false
	select {
	case <-answered.C:
		heard = true
	case <-ctx.Done():
	case <-p.ctx.Done():
	}
	if p.alive() != nil {
		ended(false)
		return lost(m.reads, errKilled)
	}
	if !heard || ctx.Err() != nil && p.h.dice("late answer", id.String()).Float64() < .5 { // the process was frozen: both are ready
		ended(false)
		return lost(m.reads, ctx.Err())
	}
	ended(true)
	p.at("heard", id)
	return answer()
}

// answerBatch draws the agent's result for each delivery of a batch, and sets hows accordingly.
func (h *history) answerBatch(ids []uuid.UUID, hows []manner) func() (mcpcall.Answer, error) {
	h.count("batch answered")
	var results []string
	for i, id := range ids {
		status := tools.ItemAccepted
		switch x := h.dice("result", id.String()).Float64(); {
		case x < .1:
			status, hows[i].ok = tools.ItemRetry, false
		case x < .13:
			status, hows[i].ok = tools.ItemRejected, false
		case x < .2:
			hows[i].ok, hows[i].known = false, false
			continue
		}
		results = append(results, fmt.Sprintf(`{"deliveryId":%q,"status":%q}`, id, status))
	}
	text := `{"results":[` + strings.Join(results, ",") + `]}`
	return func() (mcpcall.Answer, error) {
		raw := fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}],"structuredContent":%s}`, text, text)
		return mcpcall.Answer{Raw: raw, Text: text, Protocol: "2025-06-18"}, nil
	}
}

// limiter refuses some calls, as an origin's limits would.
type limiter struct {
	*ratelimit.Limiter
	p *process
}

func (h *history) limits(p *process) *admission.Gates {
	l := must(ratelimit.New(ratelimit.Config{Inflight: 1000, Rate: 1e6, PermitTTL: h.tempo.lease, Window: 300 * h.tempo.unit, OpenFor: 30 * h.tempo.unit}))
	p.onEnd = append(p.onEnd, l.Close)
	return must(admission.New(admission.Config{Origins: admission.Origins{Limiter: &limiter{l, p}}}))
}

func (l *limiter) Acquire(ctx context.Context, origin, endpoint, token string) (*ratelimit.Permit, error) {
	d := l.p.h.dice("limits", token)
	if x := d.Float64(); x < .08 {
		l.p.h.count("limited")
		why := []outcome.Reason{outcome.AgentBusy, outcome.Throttled, outcome.BreakerOpen}[d.IntN(3)]
		return nil, &ratelimit.RefusedError{Reason: why, Wait: l.p.h.tempo.waits[d.IntN(3)], Text: "the limits of " + origin + " are reached"}
	}
	return l.Limiter.Acquire(ctx, origin, endpoint, token)
}
