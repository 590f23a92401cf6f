// Command agent is what every side of bench-bridge calls: an MCP server whose one tool answers at once.
//
//	agent         speaks MCP on stdin and stdout
//	agent http    speaks streamable HTTP; its first line says where
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

// schema has what strangers' schemas have: anyOf at the top and in a property, patterns, bounds, additionalProperties.
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

// keepSysmonAwake has a timer always pending. Without one, once in some twenty million lines, all calls on stdio stopped for a minute:
// Go 1.26.8 began to stop the world just as the goroutine that reads stdin entered its system call, and waited for that read, while
// sysmon, who takes the processor away from such a thread, slept as long as it may: to the next timer, or for a minute.
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
