package mcpcall

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestDecodedAnswerIsBounded checks that little memory is allocated for answers that are within the byte limit but grow
// to twenty times that size when mcp-go or this package decodes them. It is not parallel, because it measures the
// allocations of the whole process.
func TestDecodedAnswerIsBounded(t *testing.T) {
	zeros := "[" + strings.Repeat("0,", 500_000) + "0]"
	for name, body := range map[string]string{
		"initialize": `"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"a","version":"1"},"capabilities":{"experimental":{"x":` + zeros + `}}}`,
		"tools/list": `"result":{"tools":[{"name":"x","inputSchema":{"type":"object","properties":{"a":{"enum":` + zeros + `}}}}]}`,
		"tools/call": `"result":{"content":` + zeros + `}`,
		"an error":   `"error":{"code":1,"message":"no","data":` + zeros + `}`,
		"a notice":   `"method":"notifications/message","params":{"data":` + zeros + `}`,
	} {
		method := name
		if name == "an error" || name == "a notice" {
			method = "tools/call"
		}
		for transport, h := range map[string]func(answers) http.Handler{
			"JSON":   func(on answers) http.Handler { return &agent{on: on} },
			"events": func(on answers) http.Handler { return &agent{on: on} },
			"stream": func(on answers) http.Handler { return &streamAgent{on: on} },
		} {
			if name == "a notice" && transport == "JSON" {
				continue
			}
			t.Run(name+", "+transport, func(t *testing.T) {
				ctx, p, ep := dial(t, h(answers{method: func(q *request) {
					message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, q.id, body)
					if name == "a notice" {
						message = `{"jsonrpc":"2.0",` + body + `}`
					}
					switch transport {
					case "JSON":
						q.status(200, message, "Content-Type", "application/json")
					case "events":
						q.events(": \"\ndata: %s\n\n", message) // the quote is not in a string, so that the message after it is still read
					default:
						q.w.WriteHeader(202)
						q.stream.say("data: %s\n\n", message)
					}
				}}))
				var err error
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if method == "tools/call" {
					_, err = p.Call(ctx, ep, Request{Tool: "x"})
				} else {
					_, err = p.Tools(ctx, ep, false)
				}
				runtime.ReadMemStats(&after)
				if _, ok := errors.AsType[*TooLargeError](err); !ok || !strings.Contains(err.Error(), "100000 JSON tokens") {
					t.Errorf("got %v", err)
				}
				// The limit includes growing buffers and the allocations of the agents in this process.
				if n := int64(after.TotalAlloc - before.TotalAlloc); n > 24<<20 {
					t.Errorf("%d MiB were allocated for an answer of one", n>>20)
				}
			})
		}
	}
}

// TestMaskingWaits checks that a large answer is masked only while the budget of Config.Decoding has room for it, and
// that it is not lost if the call's context ends during the wait.
func TestMaskingWaits(t *testing.T) {
	t.Parallel()
	const size, echo = 80 << 10, "very-secret-token "
	budget := decode.NewBudget(size)
	ctx, p, ep := dial(t, &agent{on: answers{"tools/call": results(`{"content":[{"type":"text","text":"` + strings.Repeat(echo, 3000) + `"}]}`)}},
		func(c *Config) { c.Decoding = budget })
	ep.Secrets = []secret.Secret{secret.New("very-secret-token")}
	release, err := budget.Acquire(ctx, size/2)
	heraldtest.Must(t, err)
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan Answer, 1)
	go func() {
		a, err := p.Call(calling, ep, Request{Tool: "x"})
		if err != nil {
			t.Errorf("the answer is lost: %v", err)
		}
		done <- a
	}()
	for err == nil { // until the other half is not given out for a second, because the answer is first in the queue
		try, stop := context.WithTimeout(ctx, time.Second)
		var free func()
		if free, err = budget.Acquire(try, size/2); err == nil {
			free()
		}
		stop()
		if len(done) > 0 {
			t.Fatal("the answer was masked without room for it")
		}
	}
	cancel()
	release()
	a := <-done
	if text := a.Text + string(a.Raw); strings.Contains(text, "secret") || strings.Count(text, "******") < 3000 {
		t.Errorf("%.100q, %d bytes of JSON", a.Text, len(a.Raw))
	}
}
