//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

// ceiling is the rate of each part alone, per second, with inflight concurrent operations.
type ceiling struct {
	inflight   int
	tasks      float64 // asynq on Redis with a handler that does nothing
	miniTasks  float64 // the same on miniredis
	calls      float64 // MCP calls through the pool, including the agents
	statements float64 // claim and record, including the dispatch of the next delivery
}

// together returns the rate if each delivery consists of the three parts, one after the other, and of nothing else.
func (c ceiling) together(queue string) float64 {
	tasks := c.tasks
	if queue == miniRedis {
		tasks = c.miniTasks
	}
	return 1 / (1/tasks + 1/c.calls + 1/c.statements)
}

func (b *bench) ceilings(ctx context.Context, inflight int) ceiling {
	say("ceilings, %d in flight", inflight)
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	b.reset(ctx)
	n := b.deliveries(inflight, targetAgents)
	c := ceiling{inflight: inflight, tasks: noop(ctx, b.site.Redis.URL(), inflight, n)}
	mini := script.Must(embedded.StartRedis(ctx, embedded.Config{Ephemeral: true, Mode: embedded.RedisMini}))
	defer script.Close(script.Within(ctx, startTimeout, mini.Stop))
	c.miniTasks = noop(ctx, mini.URL(), inflight, n)
	c.calls = b.calls(ctx, inflight, n)
	b.reset(ctx)
	c.statements = b.statements(ctx, inflight, n)
	say("  %.0f tasks, %.0f on miniredis, %.0f calls, %.0f times claim and record a second", c.tasks, c.miniTasks, c.calls, c.statements)
	return c
}

// counter is a handler that only counts. It closes done at the last delivery.
type counter struct {
	want  int64
	n     atomic.Int64
	began atomic.Int64 // Unix nanoseconds of the first delivery
	done  chan struct{}
}

func (c *counter) Deliver(context.Context, uuid.UUID, int) (string, error) {
	c.began.CompareAndSwap(0, time.Now().UnixNano())
	if c.n.Add(1) == c.want {
		close(c.done)
	}
	return "delivered", nil
}

func (c *counter) Intake(context.Context, string, []byte) (string, error) { return "", nil }

// noop puts n tasks into one lane and consumes them with the worker's own queue server.
func noop(ctx context.Context, redisURL string, inflight, n int) float64 {
	q := script.Must(queue.Open(queue.Config{URL: secret.New(redisURL), Logger: slog.New(slog.DiscardHandler)}))
	defer func() { _ = q.Close() }()
	for range n {
		script.Check(q.Enqueue(ctx, queue.Task{DeliveryID: uuid.New(), N: 1, Kind: string(job.KindNewFeedback), Lane: queue.First}))
	}
	h := &counter{want: int64(n), done: make(chan struct{})}
	s := script.Must(queue.NewServer(q, queue.ServerConfig{Handler: h, Concurrency: inflight, Kinds: []string{string(job.KindNewFeedback)}, ShutdownTimeout: startTimeout}))
	script.Check(s.Start())
	defer s.Shutdown()
	select {
	case <-h.done:
	case <-ctx.Done():
		script.Fail("%d of %d tasks: %w", h.n.Load(), n, context.Cause(ctx))
	}
	return perSecond(n, time.Unix(0, h.began.Load()))
}

func perSecond(n int, began time.Time) float64 { return float64(n) / time.Since(began).Seconds() }

// together calls do n times with inflight concurrent calls, until the first error.
func together(ctx context.Context, inflight, n int, do func(ctx context.Context, i int)) {
	all, callCtx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range inflight {
		all.Go(func() error {
			return script.Try(func() {
				for i := int(next.Add(1)) - 1; i < n && callCtx.Err() == nil; i = int(next.Add(1)) - 1 {
					do(callCtx, i)
				}
			})
		})
	}
	script.Check(errors.Join(all.Wait(), context.Cause(ctx)))
}

// readJob returns job number i. The agents take turns.
func readJob(agents *trial.Agents, i int) job.Job {
	return script.Must(job.Parse([]byte(strings.TrimSpace(agents.Line(i%agents.Len(), i))), limits))
}

// metaOf returns the _meta of a delivery's first call.
func metaOf(j job.Job) map[string]any {
	return map[string]any{"io.agentherald/delivery": map[string]any{"id": j.ID().String(), "key": j.Key(), "attempt": 1,
		"replay": false}}
}

// calls makes n MCP calls to agents with open connections, with the arguments of a feedback.
func (b *bench) calls(ctx context.Context, inflight, n int) float64 {
	agents := script.Must(trial.StartAgents(targetAgents))
	defer agents.Close()
	guard := script.Must(netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}))
	pool := script.Must(mcpcall.NewPool(mcpcall.Config{Guard: guard}))
	defer script.Close(script.Within(ctx, startTimeout, pool.Close))
	call := func(ctx context.Context, i int) {
		j := readJob(agents, i)
		at := mcpcall.Endpoint{Transport: "http", URL: j.Action.Endpoint.URL}
		tools := script.Must(pool.Tools(ctx, at, false))
		args := script.Must(mcpcall.Fit(tools.Tools[0], j.Arguments(job.File{Verification: "not_given"}, j.ID().String())))
		script.Must(pool.Call(ctx, at, mcpcall.Request{Tool: tools.Tools[0].Name, Arguments: args, Meta: metaOf(j)}))
	}
	together(ctx, inflight, max(agents.Len(), 4*inflight), call)
	began := time.Now()
	together(ctx, inflight, n, call)
	return perSecond(n, began)
}

// lease is the lease of claims whose deliveries are not executed.
const lease = 2 * time.Minute

// statements claims and records n deliveries without executing them.
func (b *bench) statements(ctx context.Context, inflight, n int) float64 {
	agents := script.Must(trial.StartAgents(targetAgents)) // only their job lines are used
	defer agents.Close()
	script.Check(b.site.ListAgents(agents))
	st := script.Must(store.Open(postgres.Config{URL: secret.New(b.database), MaxConns: int32(inflight + 1)}))
	defer st.Close()
	warm := 8 * inflight // each connection prepares its statements once
	tasks := make(chan ledger.Task, n+warm)
	var in []ledger.Intake
	for i := range n + warm {
		if in = append(in, ledger.Intake{Job: readJob(agents, i)}); len(in) == feedBatch || i == n+warm-1 {
			_, out, err := st.Accept(ctx, in)
			script.Check(err)
			for _, t := range out {
				tasks <- t
			}
			in = nil
		}
	}
	one := func(ctx context.Context, _ int) {
		var t ledger.Task
		select {
		case t = <-tasks:
		case <-ctx.Done():
			script.Check(context.Cause(ctx))
		}
		c := script.Must(st.Claim(ctx, t.ID, t.N, lease))
		if c == nil {
			script.Fail("claim of %s refused", t.ID)
		}
		for _, next := range script.Must(st.Record(ctx, c, makeOutcome(c, agents.URL(0)))).Next {
			tasks <- next
		}
	}
	together(ctx, inflight, warm, one)
	began := time.Now()
	together(ctx, inflight, n, one)
	return perSecond(n, began)
}

// makeOutcome returns an outcome as large as that of a feedback that an agent accepted at the URL.
func makeOutcome(c *ledger.Claim, url string) ledger.Outcome {
	args := script.Must(json.Marshal(c.Job.Arguments(job.File{Verification: "not_given"}, c.ID.String())))
	const answer = `{"content":[{"type":"text","text":"thank you"}]}`
	return ledger.Outcome{Status: outcome.Delivered, Stage: "call", Called: true, AgentOK: true, ToolName: c.Job.Action.ToolName,
		Endpoint: url, FileVerification: "not_fetched", Arguments: args,
		Response: json.RawMessage(answer), Result: json.RawMessage(answer), Protocol: "2025-11-25",
		ServerInfo: json.RawMessage(`{"name":"recording agent","version":"1"}`)}
}
