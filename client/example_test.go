package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"testing"
	"time"

	"github.com/agentherald/herald/client"
)

// TestMain runs the examples if API_URL is set: TestClientExample of package api sets it.
func TestMain(m *testing.M) {
	if os.Getenv("API_URL") == "" {
		m.Run()
		return
	}
	Example()
	ExampleClient_Deliveries()
	ExampleClient_Replay()
	ExampleClient_ReplayAll()
	ExampleClient_Agents()
	ExampleClient_Events()
}

func connect() *client.Client {
	herald, err := client.New(client.Config{URL: os.Getenv("API_URL"), Token: os.Getenv("API_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	return herald
}

func Example() {
	herald, err := client.New(client.Config{URL: os.Getenv("API_URL"), Token: os.Getenv("API_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	// Enqueue one job.
	answer, err := herald.Enqueue(ctx, map[string]any{"type": "NewFeedback", "chainId": 8453, "agentId": "42",
		"clientAddress": "0x1111111111111111111111111111111111111111", "feedbackIndex": 7, "value": "9977", "valueDecimals": 2,
		"transactionHash": "0x4444444444444444444444444444444444444444444444444444444444444444"})
	var refused *client.Error
	switch {
	case errors.As(err, &refused) && refused.Temporary():
		log.Fatalf("again in %s", refused.RetryAfter)
	case err != nil:
		log.Fatal(err)
	case answer.Error != nil:
		log.Fatalf("%s: %s: %s", answer.Verdict, answer.Error.Field, answer.Error.Message)
	}

	// Wait for its result. A held delivery has not ended: without a node of the chain, it is still held after a minute.
	minute, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	delivery, err := herald.Wait(minute, answer.ID)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		log.Fatal(err)
	}
	fmt.Println(delivery.Status, delivery.Reason)

	// Enqueue many jobs.
	index := 7
	next := func() (any, error) {
		if index++; index > 1000 {
			return nil, io.EOF
		}
		return map[string]any{"type": "NewFeedback", "chainId": 8453, "agentId": "42",
			"clientAddress": "0x1111111111111111111111111111111111111111", "feedbackIndex": index, "value": "99", "valueDecimals": 0}, nil
	}
	notAccepted, err := herald.EnqueueMany(ctx, next)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range notAccepted {
		fmt.Printf("job %d is %s: %s: %s\n", a.Line, a.Verdict, a.Error.Field, a.Error.Message)
	}
}

func ExampleClient_Deliveries() {
	herald, shown := connect(), 0
	for delivery, err := range herald.Deliveries(context.Background(), client.Selection{Agent: "8453:42", Status: "queued"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(delivery.Kind, delivery.Status)
		if shown++; shown == 2 {
			break // without it, the loop reads all pages
		}
	}
}

func ExampleClient_Replay() {
	herald, ctx := connect(), context.Background()
	for delivery, err := range herald.Deliveries(ctx, client.Selection{Status: "queued"}) {
		if err != nil {
			log.Fatal(err)
		}
		if err := herald.Cancel(ctx, delivery.ID); err != nil {
			log.Fatal(err)
		}
		if err := herald.Replay(ctx, delivery.ID); err != nil {
			log.Fatal(err)
		}
		delivery, err = herald.Get(ctx, delivery.ID)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("replayed:", delivery.Status)
		break
	}
}

func ExampleClient_ReplayAll() {
	report, err := connect().ReplayAll(context.Background(), client.Selection{Agent: "8453:42", Status: "cancelled"},
		client.Move{DryRun: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("would replay:", report.ByStatus["cancelled"])
}

func ExampleClient_Agents() {
	herald, ctx := connect(), context.Background()
	for agent, err := range herald.Agents(ctx, client.AgentSelection{ChainID: 8453}) {
		if err != nil {
			log.Fatal(err)
		}
		if err := herald.DisableAgent(ctx, agent.Name()); err != nil {
			log.Fatal(err)
		}
		released, err := herald.EnableAgent(ctx, agent.Name())
		if err != nil {
			log.Fatal(err)
		}
		agent, err = herald.GetAgent(ctx, agent.Name())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(agent.Name(), agent.Enabled, released)
	}
}

func ExampleClient_Events() {
	enough := errors.New("enough")
	err := connect().Events(context.Background(), client.EventSelection{Statuses: []string{"cancelled"}}, func(e client.Event) error {
		fmt.Println("event:", e.Status, e.Reason)
		return enough // store e.ID to resume after this event later
	})
	if !errors.Is(err, enough) {
		log.Fatal(err)
	}
}
