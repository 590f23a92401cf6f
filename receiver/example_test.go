package receiver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/receiver"
	"github.com/agentherald/herald/receiver/callers"
	"github.com/agentherald/herald/receiver/receivertest"
)

func ExampleRegister() {
	agent := server.NewMCPServer("my-agent", "1.0.0")
	receiver.Register(agent, receiver.Handlers{
		OnFeedback: func(_ context.Context, f receiver.Feedback) error {
			fmt.Printf("feedback %d: %s %q\n", f.FeedbackIndex, f.Value, f.Tag1)
			return nil
		},
	})
	web := httptest.NewServer(server.NewStreamableHTTPServer(agent))
	defer web.Close()

	for range 2 { // Herald calls again if an answer was lost
		answer, err := receivertest.SendFeedback(context.Background(), web.URL, receiver.Feedback{
			Event: receiver.Event{DeliveryID: "5b0e1c1e-9dad-41d1-80b4-00c04fd430c8"}, Value: "20", Tag1: "slow"})
		fmt.Println(answer.Status, answer.Duplicate, err)
	}
	// Output:
	// feedback 1: 20 "slow"
	// accepted false <nil>
	// accepted true <nil>
}

func ExampleReject() {
	agent := server.NewMCPServer("my-agent", "1.0.0")
	receiver.Register(agent, receiver.Handlers{
		OnFeedback: func(_ context.Context, f receiver.Feedback) error {
			if f.ChainID != 8453 {
				return receiver.Reject("this agent is registered on Base")
			}
			return errors.New("the database is full")
		},
	}, receiver.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	web := httptest.NewServer(server.NewStreamableHTTPServer(agent))
	defer web.Close()

	for _, chain := range []uint64{1, 8453} {
		answer, err := receivertest.SendFeedback(context.Background(), web.URL, receiver.Feedback{Event: receiver.Event{ChainID: chain}})
		fmt.Printf("%s: %s, %v\n", answer.Status, answer.Error, err)
	}
	// Output:
	// rejected: this agent is registered on Base, <nil>
	// retry: call agent.receiveFeedback: internal error: the agent cannot store this now; its own log has the cause, <nil>
}

// An agent serves one Herald only. Package callers verifies its signatures.
func Example_signed() {
	herald, err := receivertest.NewHerald()
	if err != nil {
		panic(err)
	}
	defer herald.Close()
	agent := server.NewMCPServer("my-agent", "1.0.0")
	receiver.Register(agent, receiver.Handlers{OnFeedback: func(context.Context, receiver.Feedback) error { return nil }})
	mux := http.NewServeMux()
	web := httptest.NewServer(mux)
	defer web.Close()
	mux.Handle("/mcp", callers.MustNew(callers.Config{Herald: herald.URL, Self: web.URL}).Require(server.NewStreamableHTTPServer(agent)))

	answer, err := herald.SendFeedback(context.Background(), web.URL+"/mcp", receiver.Feedback{})
	fmt.Println("signed:", answer.Status, err)
	_, err = receivertest.SendFeedback(context.Background(), web.URL+"/mcp", receiver.Feedback{})
	fmt.Println("unsigned: refused", err != nil)
	// Output:
	// signed: accepted <nil>
	// unsigned: refused true
}
