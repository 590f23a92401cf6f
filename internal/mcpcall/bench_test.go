package mcpcall

import (
	"context"
	"encoding/json"
	"math/big"
	"net/http"
	"os"
	"runtime"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/job"
)

// BenchmarkCall compares a call to a known agent (tool list from memory, arguments fitted and validated against a
// schema with anyOf, the call) with mcp-go's own pooled call of the same tool. 16 calls are in flight.
func BenchmarkCall(b *testing.B) {
	for _, kind := range []string{TransportHTTP, TransportSSE, TransportStdio} {
		ep := benchEndpoint(b, kind)
		b.Run(kind+"/herald", func(b *testing.B) { benchPool(b, ep) })
		b.Run(kind+"/bare", func(b *testing.B) { benchBare(b, ep) })
	}
}

func benchEndpoint(b *testing.B, kind string) Endpoint {
	switch kind {
	case TransportHTTP:
		srv := realServer()
		b.Cleanup(srv.Close)
		return Endpoint{Transport: kind, URL: srv.URL}
	case TransportSSE:
		return streamOf(serve(b, server.NewSSEServer(realTools())))
	}
	return command("plain")
}

// inFlight runs f in 16 goroutines.
func inFlight(b *testing.B, f func() error) {
	b.ReportAllocs()
	b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := f(); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
}

func benchPool(b *testing.B, ep Endpoint) {
	p := newPool(b)
	ctx := context.Background()
	if _, err := p.Tools(ctx, ep, false); err != nil {
		b.Fatal(err)
	}
	inFlight(b, func() error {
		set, err := p.Tools(ctx, ep, false)
		if err != nil {
			return err
		}
		tool, _ := Find(set.Tools, feedbackTool, Aliases(feedbackTool))
		args, err := Fit(tool, map[string]any{"value": "9977", "score": job.Decimal{Unscaled: big.NewInt(9977), Decimals: 2}, "tag1": "uptime", "feedbackIndex": json.Number("3")})
		if err != nil {
			return err
		}
		_, err = p.Call(ctx, ep, Request{Tool: tool.Name, Arguments: args, Meta: map[string]any{"io.agentherald/delivery": 1}})
		return err
	})
}

func benchBare(b *testing.B, ep Endpoint) {
	var tr transport.Interface
	switch ep.Transport {
	case TransportHTTP:
		tr = must(transport.NewStreamableHTTP(ep.URL, transport.WithHTTPBasicClient(&http.Client{Transport: newPool(b).base})))
	case TransportSSE:
		tr = must(transport.NewSSE(ep.URL, transport.WithHTTPClient(&http.Client{Transport: newPool(b).base})))
	default:
		tr = transport.NewStdio(ep.Command, append(os.Environ(), ep.Env...))
	}
	c := client.NewClient(tr, client.WithProtocolVersion(legacyVersion))
	b.Cleanup(func() { _ = c.Close() })
	ctx := context.Background()
	heraldtest.Must(b, c.Start(ctx))
	must(c.Initialize(ctx, mcp.InitializeRequest{}))
	var request mcp.CallToolRequest
	request.Params.Name = feedbackTool
	request.Params.Arguments = map[string]any{"value": "9977", "score": 99.77, "tag1": "uptime", "feedbackIndex": 3}
	request.Params.Meta = &mcp.Meta{AdditionalFields: map[string]any{"io.agentherald/delivery": 1}}
	inFlight(b, func() error {
		_, err := c.CallTool(ctx, request)
		return err
	})
}
