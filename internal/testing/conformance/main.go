// Command conformance is the client that the conformance suite of the Model Context Protocol tests. It uses
// internal/mcpcall as a delivery does. `make conformance` runs it (scripts/mcpconformance). The suite starts it once for
// each of its scenarios as
//
//	conformance URL
//
// with the scenario's name, its context and the protocol revision in MCP_CONFORMANCE_SCENARIO, _CONTEXT and
// _PROTOCOL_VERSION. The suite records the requests to URL and judges them and the exit code.
//
// In every scenario, the command lists the tools, fits arguments to each tool's schema, and calls each tool that
// accepts them. When the server refuses a step because a token is missing, it obtains one with internal/auth/oauth and
// repeats the step. It uses the client that the context names, or simulates a person that agrees to everything. Only
// the arguments of tools are specific to a scenario.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/scripts/script"
)

const (
	runTime   = 25 * time.Second // the suite gives up after 30 s
	closeTime = 5 * time.Second
)

func main() {
	script.Run("conformance", func(ctx context.Context) {
		if len(os.Args) != 2 {
			script.Fail("the one argument is the URL of a scenario's server")
		}
		ctx, cancel := context.WithTimeout(ctx, runTime)
		defer cancel()
		runScenario(ctx, os.Args[1], os.Getenv("MCP_CONFORMANCE_PROTOCOL_VERSION"), os.Getenv("MCP_CONFORMANCE_CONTEXT"))
	})
}

// runScenario tests one server. Like a delivery, it does not call a tool whose schema rejects the arguments; the suite
// judges whether that is correct.
func runScenario(ctx context.Context, url, revision, about string) {
	wanted, known := readContext(about)
	guard := script.Must(netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}))
	pool := script.Must(mcpcall.NewPool(mcpcall.Config{Guard: guard}))
	defer script.Close(script.Within(ctx, closeTime, pool.Close))
	web := guard.Client(netguard.Limits{}, 0)
	defer web.CloseIdleConnections()
	agent := &authorizer{oauth: script.Must(oauth.New(oauth.Config{HTTP: web})), web: web, operator: known,
		ep:      mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: url, ProtocolHint: revision},
		clients: map[string]oauth.Credential{}, scopes: map[string]string{}}
	set := script.Must(withToken(ctx, agent, func(ep mcpcall.Endpoint) (mcpcall.ToolSet, error) {
		return pool.Tools(ctx, ep, false)
	}))
	fmt.Printf("%d tools over %s\n", len(set.Tools), set.Protocol)
	var errs []error
	for _, tool := range set.Tools {
		args, ok := wanted[tool.Name]
		if !ok {
			args = exampleArguments(tool, set.Tools)
		}
		errs = append(errs, script.Try(func() { callTool(ctx, pool, agent, tool, args) }))
	}
	script.Check(errors.Join(errs...))
}

// callTool calls one tool, unless its schema rejects args.
func callTool(ctx context.Context, pool *mcpcall.Pool, agent *authorizer, tool mcpcall.Tool, args map[string]any) {
	fitted, err := mcpcall.Fit(tool, args)
	if err != nil {
		fmt.Printf("%s is not called: %v\n", tool.Name, err)
		return
	}
	answer, err := withToken(ctx, agent, func(ep mcpcall.Endpoint) (mcpcall.Answer, error) {
		return pool.Call(ctx, ep, mcpcall.Request{Tool: tool.Name, Arguments: fitted})
	})
	if err != nil {
		script.Fail("%s: %w", tool.Name, err)
	}
	fmt.Printf("%s answered %q (error: %t)\n", tool.Name, answer.Text, answer.IsError)
}

// readContext parses a scenario's context: the arguments of its tools, if given, and the client.
func readContext(about string) (map[string]map[string]any, operator) {
	var c struct {
		operator
		ToolCalls []struct {
			Name      string                     `json:"name"`
			Arguments map[string]json.RawMessage `json:"arguments"`
		} `json:"toolCalls"`
	}
	if err := json.Unmarshal([]byte(cmp.Or(about, "{}")), &c); err != nil {
		script.Fail("read MCP_CONFORMANCE_CONTEXT: %w", err)
	}
	calls := map[string]map[string]any{}
	for _, t := range c.ToolCalls {
		args := map[string]any{}
		for name, raw := range t.Arguments {
			args[name] = raw
			if string(raw) == "null" {
				args[name] = nil
			}
		}
		calls[t.Name] = args
	}
	return calls, c.operator
}

// exampleArguments returns arguments for a tool that the scenario does not specify: one value for each argument that
// the schema requires.
func exampleArguments(tool mcpcall.Tool, all []mcpcall.Tool) map[string]any {
	if tool.Name == "json_schema_echo" { // expects the other tool's schema as it was received
		if other, ok := mcpcall.Find(all, "json_schema_2020_12_tool", nil); ok {
			return map[string]any{"schema": other.InputSchema}
		}
	}
	var schema struct {
		Required   []string `json:"required"`
		Properties map[string]struct {
			Type string `json:"type"`
		} `json:"properties"`
	}
	// A schema of another form gets no arguments; the tool's schema or the tool may then reject the call.
	_ = json.Unmarshal(tool.InputSchema, &schema)
	args := map[string]any{}
	for _, name := range schema.Required {
		switch schema.Properties[name].Type {
		case "number", "integer":
			args[name] = json.Number("5")
		case "boolean":
			args[name] = true
		case "object":
			args[name] = map[string]any{}
		case "array":
			args[name] = []any{}
		default:
			args[name] = "text"
		}
	}
	return args
}
