// Command agent is an MCP server that receives feedback from Herald. It is meant to be copied.
//
//	agent                        speaks MCP on stdin and stdout
//	agent -http 127.0.0.1:8081   speaks streamable HTTP at /mcp; port 0 selects a free port
//	agent -http 127.0.0.1:8081 -herald https://herald.example -self https://agent.example
//	                             serves only that Herald, which calls the agent by the address in -self
//
// Package receiver calls the functions below once for each delivery, also if Herald calls again. Stdin and stdout have
// one caller, so -herald applies to HTTP only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/receiver"
	"github.com/agentherald/herald/receiver/callers"
)

func main() {
	listen := flag.String("http", "", "serve streamable HTTP on this `address` instead of stdin and stdout")
	registration := flag.String("registration", "", "serve this `file`, the agent's registration or a list of agents, at "+wellKnown+
		": it shows callers that this endpoint is the agent's")
	herald := flag.String("herald", "", "serve only the Herald whose HERALD_PUBLIC_URL is this `URL`")
	self := flag.String("self", "", "scheme and host under which that Herald calls this agent, as its registration has them; needed with -herald, and only with it")
	flag.Parse()
	agent := server.NewMCPServer("example-agent", "1.0.0", server.WithToolCapabilities(false))
	receiver.Register(agent, receiver.Handlers{
		OnFeedback: func(_ context.Context, f receiver.Feedback) error { // a real agent stores it in its database
			fmt.Fprintf(os.Stderr, "feedback %d from %q\n", f.FeedbackIndex, f.ClientAddress)
			return nil
		},
		OnRevocation: func(_ context.Context, r receiver.Revocation) error {
			fmt.Fprintf(os.Stderr, "feedback %d from %q no longer holds\n", r.FeedbackIndex, r.ClientAddress)
			return nil
		},
	})

	guard := func(next http.Handler) http.Handler { return next }
	if *herald != "" || *self != "" {
		known, err := callers.New(callers.Config{Herald: *herald, Self: *self})
		if err != nil {
			fmt.Fprintln(os.Stderr, "agent:", err)
			os.Exit(2)
		}
		guard = known.Require
	}
	err := serveAgent(agent, *listen, *registration, guard)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

const wellKnown = "/.well-known/agent-registration.json"

// serveAgent serves the agent on stdin and stdout, or over HTTP if address is not empty.
func serveAgent(agent *server.MCPServer, address, registration string, guard func(http.Handler) http.Handler) error {
	if address == "" {
		return server.ServeStdio(agent)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/mcp", guard(server.NewStreamableHTTPServer(agent)))
	if registration != "" {
		mux.HandleFunc(wellKnown, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, registration) })
	}
	web := &http.Server{Handler: http.MaxBytesHandler(mux, 8<<20), ReadHeaderTimeout: 5 * time.Second}
	fmt.Fprintf(os.Stderr, "listening on http://%s/mcp\n", listener.Addr())
	stop, done := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer done()
	context.AfterFunc(stop, func() { _ = web.Close() }) // calls in progress fail, and Herald retries them
	if err = web.Serve(listener); errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}
