package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestDecodedAnswerIsBounded checks that little memory is allocated for answers that are within the byte limit but grow
// to twenty times that size when mcp-go or this package decodes them. It is not parallel, because it measures the
// allocations of the whole process.
func TestDecodedAnswerIsBounded(t *testing.T) {
	zeros := "[" + strings.Repeat("0,", 500_000) + "0]"
	bodies := map[string]string{
		"initialize": `"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"a","version":"1"},"capabilities":{"experimental":{"x":` + zeros + `}}}`,
		"tools/list": `"result":{"tools":[{"name":"x","inputSchema":{"type":"object","properties":{"a":{"enum":` + zeros + `}}}}]}`,
		"tools/call": `"result":{"content":` + zeros + `}`,
		"an error":   `"error":{"code":1,"message":"no","data":` + zeros + `}`,
		"a notice":   `"method":"notifications/message","params":{"data":` + zeros + `}`,
	}
	for name, body := range bodies {
		method := name
		if _, is := map[string]bool{"an error": true, "a notice": true}[name]; is {
			method = "tools/call"
		}
		message := func(id json.RawMessage) string {
			if name == "a notice" {
				return `{"jsonrpc":"2.0",` + body + `}`
			}
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, id, body)
		}
		for _, transport := range []string{"JSON", "events", "stream"} {
			if name == "a notice" && transport == "JSON" {
				continue
			}
			t.Run(name+", "+transport, func(t *testing.T) {
				simple := &agent{on: func(m string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
					switch {
					case m != method:
						return false
					case transport == "events":
						w.Header().Set("Content-Type", "text/event-stream")
						fmt.Fprintf(w, ": \"\ndata: %s\n\n", message(id)) // the quote is not in a string, so that the message after it is still read
					default:
						w.Header().Set("Content-Type", "application/json")
						_, _ = io.WriteString(w, message(id))
					}
					return true
				}}
				stream := &streamAgent{post: func(m string, s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
					if m != method {
						return false
					}
					w.WriteHeader(202)
					s.say("data: %s\n\n", message(id))
					return true
				}}
				ep := Endpoint{Transport: TransportHTTP, URL: serve(t, simple).URL}
				if transport == "stream" {
					ep = streamOf(serve(t, stream))
				}
				p := newPool(t)
				ctx := heraldtest.Within(t, 30*time.Second)
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
