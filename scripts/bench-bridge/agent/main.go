// Command agent is the agent that all sides of bench-bridge call: an MCP server with one tool that answers at once.
//
//	agent         uses MCP on stdin and stdout
//	agent http    uses streamable HTTP; its first line is its URL
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	_ "embed"
)

// schema contains the features of real agents' schemas: anyOf at the top level and in a property, patterns, bounds,
// additionalProperties.
//
//go:embed schema.json
var schema []byte

func main() {
	agent := server.NewMCPServer("bench-agent", "1.0.0", server.WithToolCapabilities(false))
	agent.AddTool(mcp.NewToolWithRawSchema("agent.receiveFeedback", "Takes feedback.", schema),
		func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText(`{"acknowledged":true}`), nil
		})
	serve := server.ServeStdio
	if len(os.Args) > 1 && os.Args[1] == "http" {
		serve = serveHTTP
	}
	go keepSysmonAwake()
	if err := serve(agent); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// keepSysmonAwake keeps a timer pending. Without one, all calls on stdio stopped for a minute once in about twenty
// million lines. Go 1.26.8 began to stop the world when the goroutine that reads stdin entered its system call, and
// waited for that read. sysmon, which takes the processor from such a thread, slept until the next timer, or for a
// minute.
func keepSysmonAwake() {
	for range time.Tick(50 * time.Millisecond) {
	}
}

func serveHTTP(agent *server.MCPServer, _ ...server.StdioOption) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/mcp\n", listener.Addr())
	web := &http.Server{Handler: server.NewStreamableHTTPServer(agent), ReadHeaderTimeout: 5 * time.Second}
	return web.Serve(listener)
}
