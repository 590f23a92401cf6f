//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

const (
	tool       = "agent.receiveFeedback"
	overHTTP   = "HTTP"
	overStdio  = "stdio"
	bridgeWay  = "bridge"
	heraldWay  = "Herald"
	bareWay    = "mcp-go alone"
	openTime   = 20 * time.Second
	closeTime  = 10 * time.Second
	idlePerWay = 64 // idle connections that each HTTP client keeps; more than calls in flight
)

// place is the address of an agent: a URL, or a command that uses MCP on stdin and stdout.
type place struct{ url, command string }

// connection is one way of calling, ready for calls.
type connection struct {
	call  func(context.Context) error
	close func() error
}

var (
	ways      = []string{bridgeWay, heraldWay, bareWay}
	turns     = [][]string{{bridgeWay}, {heraldWay, bareWay}} // the ways of one turn alternate within it, see slice
	inflights = []int{16, 1}
)

// round runs every way on both transports. The way that begins changes from round to round.
func (b *bench) round(ctx context.Context, round int, r *report) error {
	for _, over := range []string{overHTTP, overStdio} {
		for _, inflight := range inflights {
			for i := range turns {
				together := turns[(round+i)%len(turns)]
				samples, err := b.turn(ctx, over, inflight, together)
				if err != nil {
					return fmt.Errorf("%s over %s, %d in flight: %w", strings.Join(together, " and "), over, inflight, err)
				}
				for k, s := range samples {
					c := cell{over, together[k], inflight}
					r.add(c, s)
					b.say("round %d of %d: %s: %.0f/s, p50 %s ms, p99 %s ms", round+1, b.rounds, c, s.rate, millis(s.p50), millis(s.p99))
				}
			}
		}
	}
	return nil
}

// turn measures ways of calling one agent, with its own processes.
func (b *bench) turn(ctx context.Context, over string, inflight int, together []string) (samples []sample, err error) {
	b.turns++
	var ends []func() error
	defer func() {
		for _, end := range slices.Backward(ends) {
			err = errors.Join(err, end())
		}
	}()
	at := place{command: b.agent}
	if over == overHTTP {
		p, url, err := b.start(ctx, "agent", b.agent, "http")
		if err != nil {
			return nil, err
		}
		ends = append(ends, p.End)
		at = place{url: url}
	}
	var calls []func(context.Context) error
	for _, way := range together {
		conn, err := b.connect(ctx, way, at)
		if err != nil {
			return nil, err
		}
		ends = append(ends, conn.close)
		calls = append(calls, conn.call)
	}
	return drive(ctx, inflight, b.time, calls...)
}

// connect prepares one way of calling.
func (b *bench) connect(ctx context.Context, way string, at place) (connection, error) {
	switch way {
	case heraldWay:
		return throughHerald(at)
	case bareWay:
		return throughBare(ctx, at)
	}
	p, url, err := b.start(ctx, "bridge", b.node, b.bridge)
	if err != nil {
		return connection{}, err
	}
	conn, err := throughBridge(url, at)
	if err != nil {
		return connection{}, errors.Join(err, p.End())
	}
	idle := conn.close
	conn.close = func() error { return errors.Join(idle(), p.End()) }
	return conn, nil
}

// start runs a program whose first line is the address at which it listens.
func (b *bench) start(ctx context.Context, name, path string, args ...string) (p *trial.Process, url string, err error) {
	log := filepath.Join(b.folder, fmt.Sprintf("%s.%d.log", name, b.turns))
	if p, err = (trial.Foreign{Name: name, Path: path, Args: args, Env: npm.Environment(), Log: log}).Start(); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	err = trial.Until(ctx, 5*time.Millisecond, "the "+name+" to say where it listens", func() (bool, error) {
		select {
		case <-p.Done():
			return false, fmt.Errorf("it has ended; run with -keep and read %s", log)
		default:
		}
		for line, err := range p.Lines() {
			url = line.Message
			return url != "", err
		}
		return false, nil
	})
	if err != nil {
		return nil, "", errors.Join(err, p.End())
	}
	return p, url, nil
}

// feedback returns the arguments of a delivery before they are fitted.
func feedback() (map[string]any, error) {
	j, err := job.Parse([]byte(`{"type":"NewFeedback","chainId":8453,"agentId":"42","clientAddress":"0x00000000000000000000000000000000000000aa",
		"feedbackIndex":7,"value":"955","valueDecimals":1,"tag1":"quality","tag2":"fast","feedbackURI":"ipfs://bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e",
		"timestamp":1789000000,"blockNumber":35000000,"action":{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"http://127.0.0.1/"}}}`), job.Limits{})
	if err != nil {
		return nil, fmt.Errorf("make up a feedback: %w", err)
	}
	return j.Arguments(job.File{Verification: "not_given"}, j.ID().String()), nil
}

// meta returns the _meta of a delivery.
func meta(args map[string]any) map[string]any {
	return map[string]any{"io.agentherald/delivery": map[string]any{"id": args["deliveryId"], "attempt": 1, "replay": false}}
}

// fitted returns the fitted arguments, for the ways that do not fit them themselves.
func fitted() (map[string]any, error) {
	args, err := feedback()
	if err != nil {
		return nil, err
	}
	return mcpcall.Fit(mcpcall.Tool{InputSchema: agentSchema}, args)
}

// reallyValidates checks that Herald validates and is not fast because it skips that: arguments that violate the
// schema's anyOf must be refused.
func reallyValidates() error {
	args, err := fitted()
	if err != nil {
		return fmt.Errorf("the feedback does not fit the agent's schema: %w", err)
	}
	delete(args, "value")
	delete(args, "score")
	var refused *mcpcall.SchemaError
	if _, err := mcpcall.Fit(mcpcall.Tool{InputSchema: agentSchema}, args); !errors.As(err, &refused) {
		return fmt.Errorf("arguments without value and score pass the agent's schema: %w", err)
	}
	return nil
}

// throughBridge sends every call to the bridge.
func throughBridge(bridge string, at place) (connection, error) {
	args, err := fitted()
	if err != nil {
		return connection{}, err
	}
	body, err := json.Marshal(map[string]any{"url": at.url, "command": at.command, "args": []string{}, "tool": tool, "arguments": args})
	if err != nil {
		return connection{}, fmt.Errorf("write a call for the bridge: %w", err)
	}
	conns := &http.Transport{MaxIdleConns: idlePerWay, MaxIdleConnsPerHost: idlePerWay}
	web := &http.Client{Transport: conns}
	call := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, bridge, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := web.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		if err == nil && (res.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte("acknowledged"))) {
			err = fmt.Errorf("the bridge answered %s: %s", res.Status, answer)
		}
		return err
	}
	return connection{call, func() error { conns.CloseIdleConnections(); return nil }}, nil
}

// throughHerald calls as a delivery does.
func throughHerald(at place) (connection, error) {
	args, err := feedback()
	if err != nil {
		return connection{}, err
	}
	guard, err := netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		return connection{}, err
	}
	cfg := mcpcall.Config{Guard: guard}
	ep := mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: at.url}
	if at.url == "" {
		ep = mcpcall.Endpoint{Transport: mcpcall.TransportStdio, Command: at.command}
		cfg.StdioCommands = [][]string{{at.command}}
	}
	pool, err := mcpcall.NewPool(cfg)
	if err != nil {
		return connection{}, err
	}
	call := func(ctx context.Context) error {
		tools, err := pool.Tools(ctx, ep, false)
		if err != nil {
			return err
		}
		t, ok := mcpcall.Find(tools.Tools, tool, nil)
		if !ok {
			return errors.New("the agent offers no " + tool)
		}
		fit, err := mcpcall.Fit(t, args)
		if err != nil {
			return err
		}
		answer, err := pool.Call(ctx, ep, mcpcall.Request{Tool: t.Name, Arguments: fit, Meta: meta(args)})
		if err == nil && (answer.IsError || answer.Unreadable) {
			err = fmt.Errorf("the agent answered %s", answer.Raw)
		}
		return err
	}
	return connection{call, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		return pool.Close(ctx)
	}}, nil
}

// throughBare calls with one mcp-go client that is kept: the basis of Herald's calls, without Herald's additions.
func throughBare(ctx context.Context, at place) (connection, error) {
	args, err := fitted()
	if err != nil {
		return connection{}, err
	}
	var inner transport.Interface = transport.NewStdio(at.command, nil)
	if at.url != "" {
		web := &http.Client{Transport: &http.Transport{MaxIdleConns: idlePerWay, MaxIdleConnsPerHost: idlePerWay}}
		if inner, err = transport.NewStreamableHTTP(at.url, transport.WithHTTPBasicClient(web)); err != nil {
			return connection{}, err
		}
	}
	c := client.NewClient(inner, client.WithProtocolVersion(mcp.ProtocolVersion20251125))
	if err := c.Start(ctx); err != nil {
		return connection{}, errors.Join(err, c.Close())
	}
	var hello mcp.InitializeRequest
	hello.Params.ProtocolVersion = mcp.ProtocolVersion20251125
	hello.Params.ClientInfo = mcp.Implementation{Name: "bench-bridge", Version: "1.0.0"}
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if _, err := c.Initialize(opening, hello); err != nil {
		return connection{}, errors.Join(err, c.Close())
	}
	var request mcp.CallToolRequest
	request.Params.Name = tool
	request.Params.Arguments = args
	request.Params.Meta = &mcp.Meta{AdditionalFields: meta(args)}
	call := func(ctx context.Context) error {
		answer, err := c.CallTool(ctx, request)
		if err == nil && answer.IsError {
			err = errors.New("the agent answered with an error")
		}
		return err
	}
	return connection{call, c.Close}, nil
}
