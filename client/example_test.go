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

// TestMain runs Example if API_URL is set: TestClientExample of package api sets it.
func TestMain(m *testing.M) {
	if os.Getenv("API_URL") != "" {
		Example()
		return
	}
	m.Run()
}

func Example() {
	herald, err := client.New(client.Config{URL: os.Getenv("API_URL"), Token: os.Getenv("API_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	// Enqueue one job.
	answer, err := herald.Enqueue(ctx, map[string]any{"type": "NewFeedback", "chainId": 8453, "agentId": "42",
		"clientAddress": "0x1111111111111111111111111111111111111111", "feedbackIndex": 7, "value": "9977", "valueDecimals": 2})
	var refused *client.Error
	switch {
	case errors.As(err, &refused) && refused.Temporary():
		log.Fatalf("again in %s", refused.RetryAfter)
	case err != nil:
		log.Fatal(err)
	case answer.Error != nil:
		log.Fatalf("%s: %s: %s", answer.Verdict, answer.Error.Field, answer.Error.Message)
	}

	// Wait for its result.
	delivery, err := herald.Wait(ctx, answer.ID)
	if err != nil {
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
