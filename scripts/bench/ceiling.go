//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/google/uuid"
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

func (b *bench) ceilings(ctx context.Context, inflight int) (c ceiling, err error) {
	say("ceilings, %d in flight", inflight)
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	c.inflight = inflight
	if err := b.reset(ctx); err != nil {
		return c, err
	}
	n := b.deliveries(inflight, targetAgents)
	if c.tasks, err = noop(ctx, b.site.Redis.URL(), inflight, n); err != nil {
		return c, err
	}
	mini, err := embedded.StartRedis(ctx, embedded.RedisConfig{Ephemeral: true, Mode: embedded.RedisMini})
	if err != nil {
		return c, err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		err = errors.Join(err, mini.Stop(stop))
	}()
	if c.miniTasks, err = noop(ctx, mini.URL(), inflight, n); err != nil {
		return c, err
	}
	if c.calls, err = b.calls(ctx, inflight, n); err != nil {
		return c, err
	}
	if err := b.reset(ctx); err != nil {
		return c, err
	}
	c.statements, err = b.statements(ctx, inflight, n)
	say("  %.0f tasks, %.0f on miniredis, %.0f calls, %.0f times claim and record a second", c.tasks, c.miniTasks, c.calls, c.statements)
	return c, err
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
func noop(ctx context.Context, redisURL string, inflight, n int) (float64, error) {
	q, err := queue.Open(queue.Config{URL: secret.New(redisURL), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, err
	}
	defer func() { _ = q.Close() }()
	for range n {
		if err := q.Enqueue(ctx, queue.Task{DeliveryID: uuid.New(), N: 1, Kind: string(job.KindNewFeedback), Lane: queue.First}); err != nil {
			return 0, err
		}
	}
	h := &counter{want: int64(n), done: make(chan struct{})}
	s, err := queue.NewServer(q, queue.ServerConfig{Handler: h, Concurrency: inflight, Kinds: []string{string(job.KindNewFeedback)}, ShutdownTimeout: startTimeout})
	if err != nil {
		return 0, err
	}
	if err := s.Start(); err != nil {
		return 0, err
	}
	defer s.Shutdown()
	select {
	case <-h.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("%d of %d tasks: %w", h.n.Load(), n, context.Cause(ctx))
	}
	return perSecond(n, time.Unix(0, h.began.Load())), nil
}

func perSecond(n int, began time.Time) float64 { return float64(n) / time.Since(began).Seconds() }

// together calls do n times with inflight concurrent calls, until the first error.
func together(ctx context.Context, inflight, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range inflight {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// readJob returns job number i. The agents take turns.
func readJob(agents *trial.Agents, i int) (job.Job, error) {
	return job.Parse([]byte(strings.TrimSpace(agents.Line(i%agents.Len(), i))), limits)
}

// metaOf returns the _meta of a delivery's first call.
func metaOf(j job.Job) map[string]any {
	return map[string]any{"io.agentherald/delivery": map[string]any{"id": j.ID().String(), "key": j.Key(), "attempt": 1,
		"replay": false}}
}

// calls makes n MCP calls to agents with open connections, with the arguments of a feedback.
func (b *bench) calls(ctx context.Context, inflight, n int) (float64, error) {
	agents, err := trial.StartAgents(targetAgents)
	if err != nil {
		return 0, err
	}
	defer agents.Close()
	guard, err := netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		return 0, err
	}
	pool, err := mcpcall.NewPool(mcpcall.Config{Guard: guard})
	if err != nil {
		return 0, err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		_ = pool.Close(stop)
	}()
	call := func(ctx context.Context, i int) error {
		j, err := readJob(agents, i)
		if err != nil {
			return err
		}
		at := mcpcall.Endpoint{Transport: "http", URL: j.Action.Endpoint.URL}
		tools, err := pool.Tools(ctx, at, false)
		if err != nil {
			return err
		}
		args, err := mcpcall.Fit(tools.Tools[0], j.Arguments(job.File{Verification: "not_given"}, j.ID().String()))
		if err != nil {
			return err
		}
		_, err = pool.Call(ctx, at, mcpcall.Request{Tool: tools.Tools[0].Name, Arguments: args, Meta: metaOf(j)})
		return err
	}
	if err := together(ctx, inflight, max(agents.Len(), 4*inflight), call); err != nil {
		return 0, fmt.Errorf("first calls: %w", err)
	}
	began := time.Now()
	if err := together(ctx, inflight, n, call); err != nil {
		return 0, fmt.Errorf("calls: %w", err)
	}
	return perSecond(n, began), nil
}

// lease is the lease of claims whose deliveries are not executed.
const lease = 2 * time.Minute

// statements claims and records n deliveries without executing them.
func (b *bench) statements(ctx context.Context, inflight, n int) (float64, error) {
	agents, err := trial.StartAgents(targetAgents) // only their job lines are used
	if err != nil {
		return 0, err
	}
	defer agents.Close()
	if err := b.site.ListAgents(agents); err != nil {
		return 0, err
	}
	st, err := store.Open(postgres.Config{URL: secret.New(b.database), MaxConns: int32(inflight + 1)})
	if err != nil {
		return 0, err
	}
	defer st.Close()
	warm := 8 * inflight // each connection prepares its statements once
	tasks := make(chan store.Task, n+warm)
	var in []store.Intake
	for i := range n + warm {
		j, err := readJob(agents, i)
		if err != nil {
			return 0, err
		}
		if in = append(in, store.Intake{Job: j}); len(in) == feedBatch || i == n+warm-1 {
			_, out, err := st.Accept(ctx, in)
			if err != nil {
				return 0, err
			}
			for _, t := range out {
				tasks <- t
			}
			in = nil
		}
	}
	one := func(ctx context.Context, _ int) error {
		var t store.Task
		select {
		case t = <-tasks:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c, err := st.Claim(ctx, t.ID, t.N, lease)
		if err != nil || c == nil {
			return fmt.Errorf("claim of %s refused: %w", t.ID, err)
		}
		rec, err := st.Record(ctx, c, outcome(c, agents.URL(0)))
		for _, next := range rec.Next {
			tasks <- next
		}
		return err
	}
	if err := together(ctx, inflight, warm, one); err != nil {
		return 0, fmt.Errorf("first claims: %w", err)
	}
	began := time.Now()
	if err := together(ctx, inflight, n, one); err != nil {
		return 0, fmt.Errorf("claim and record: %w", err)
	}
	return perSecond(n, began), nil
}

// outcome returns an outcome as large as that of a feedback that an agent accepted at the URL.
func outcome(c *store.Claim, url string) store.Outcome {
	args, err := json.Marshal(c.Job.Arguments(job.File{Verification: "not_given"}, c.ID.String()))
	if err != nil {
		args = nil
	}
	const answer = `{"content":[{"type":"text","text":"thank you"}]}`
	return store.Outcome{Status: store.Delivered, Stage: "call", Called: true, AgentOK: true, ToolName: c.Job.Action.ToolName,
		Endpoint: url, FileVerification: "not_fetched", Arguments: args,
		Response: json.RawMessage(answer), Result: json.RawMessage(answer), Protocol: "2025-11-25",
		ServerInfo: json.RawMessage(`{"name":"recording agent","version":"1"}`)}
}
