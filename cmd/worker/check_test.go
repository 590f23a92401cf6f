package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/receiver/callers"
)

// receiver is an MCP server that receives all events from one Herald and follows every rule. A test breaks one part.
type receiver struct {
	schemas map[string]string // of each tool
	status  func(batch []string, id string) string
	handle  map[string]func(ctx context.Context, first bool, args map[string]any) (*mcp.CallToolResult, error)
	guard   func(known *callers.Verifier, next http.Handler) http.Handler
	sse     bool // serve HTTP+SSE at /sse

	mu   sync.Mutex
	ids  []string         // received deliveryIds
	meta []map[string]any // of each call
}

func newReceiver(t testing.TB, herald string, adapt func(*receiver)) (*receiver, string) {
	t.Helper()
	r := &receiver{schemas: map[string]string{},
		status: func([]string, string) string { return "accepted" },
		handle: map[string]func(context.Context, bool, map[string]any) (*mcp.CallToolResult, error){},
		guard:  func(known *callers.Verifier, next http.Handler) http.Handler { return known.Require(next) }}
	files, err := filepath.Glob("../../docs/tools/*.schema.json")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		heraldtest.Must(t, err)
		r.schemas[strings.TrimSuffix(filepath.Base(path), ".schema.json")] = string(raw)
	}
	adapt(r)
	agent := server.NewMCPServer("receiver", "1", server.WithToolCapabilities(false), server.WithInputSchemaValidation())
	for name, schema := range r.schemas {
		agent.AddTool(mcp.NewToolWithRawSchema(name, "", json.RawMessage(schema)), r.receive)
	}
	srv := httptest.NewUnstartedServer(nil)
	known, err := callers.New(callers.Config{Herald: herald, Self: "http://" + srv.Listener.Addr().String()})
	heraldtest.Must(t, err)
	t.Cleanup(srv.Close)
	if r.sse {
		srv.Config.Handler = r.guard(known, server.NewSSEServer(agent))
		srv.Start()
		return r, srv.URL + "/sse"
	}
	srv.Config.Handler = r.guard(known, server.NewStreamableHTTPServer(agent))
	srv.Start()
	return r, srv.URL + "/mcp"
}

// guarded makes each HTTP request to a receiver go through guard, which gets its body.
func guarded(guard func(known *callers.Verifier, next http.Handler, w http.ResponseWriter, r *http.Request, body []byte)) func(*receiver) {
	return func(r *receiver) {
		r.guard = func(known *callers.Verifier, next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				guard(known, next, w, r, body)
			})
		}
	}
}

func (r *receiver) receive(ctx context.Context, call mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	args := call.GetArguments()
	elements, batch := args["deliveries"].([]any)
	if !batch {
		elements = []any{args}
	}
	var ids []string
	r.mu.Lock()
	r.meta = append(r.meta, call.Params.Meta.AdditionalFields)
	for _, e := range elements {
		id, _ := e.(map[string]any)["deliveryId"].(string)
		ids = append(ids, id)
	}
	first := !slices.Contains(r.ids, ids[0])
	r.ids = append(r.ids, ids...)
	r.mu.Unlock()
	if handle := r.handle[call.Params.Name]; handle != nil {
		return handle(ctx, first, args)
	}
	if !batch {
		return mcp.NewToolResultText("thank you"), nil
	}
	var results []map[string]string
	for _, id := range ids {
		if status := r.status(ids, id); status != "" {
			results = append(results, map[string]string{"deliveryId": id, "status": status})
		}
	}
	return mcp.NewToolResultJSON(map[string]any{"results": results})
}

// publishKeys serves the directory of the desk's signing keys, and returns HERALD_PUBLIC_URL.
func (d *desk) publishKeys() string {
	d.t.Helper()
	var ring *signing.Ring
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { ring.ServeHTTP(w, r) }))
	d.t.Cleanup(srv.Close)
	var err error
	ring, err = signing.New(signing.Config{PublicURL: srv.URL, Records: records.New(d.store), Keys: d.keys()})
	heraldtest.Must(d.t, err)
	heraldtest.Must(d.t, ring.Load(d.t.Context()))
	return srv.URL
}

// newCheckDesk returns a desk that signs its requests.
func newCheckDesk(t testing.TB) (d *desk, herald string) {
	d = newDesk(t)
	herald = d.publishKeys()
	d.env = append(d.env, "HERALD_PUBLIC_URL="+herald, "HERALD_ALLOW_NETWORKS=127.0.0.0/8", "HERALD_CALL_TIMEOUT=20s")
	return d, herald
}

func verdicts(r inspect.CheckReport) map[string]string {
	all := map[string]string{}
	for _, c := range r.Checks {
		all[c.Name] = c.Verdict
	}
	return all
}

var probeID = regexp.MustCompile(`^70726f62-6500-8000-8000-[0-9a-f]{12}$`)

// TestCheckPasses checks a receiver that follows every rule, by its URL and as an agent of the servers file.
func TestCheckPasses(t *testing.T) {
	t.Parallel()
	d, herald := newCheckDesk(t)
	r, url := newReceiver(t, herald, func(*receiver) {})
	for name, verdict := range verdicts(ask[inspect.CheckReport](d, "agent", "check", url)) {
		isStatic := slices.Contains([]string{"reachable", "protocol", "tools", "schemas"}, name)
		heraldtest.Equal(t, "without --send, "+name, verdict, map[bool]string{true: "ok", false: "skipped"}[isStatic])
	}
	if len(r.ids) != 0 {
		t.Fatalf("without --send, %d samples arrived", len(r.ids))
	}

	d.lists(fmt.Sprintf(`{"8453:42":{"transport":"http","url":%q}}`, url))
	_, older := newReceiver(t, herald, func(r *receiver) { r.sse = true })
	for _, target := range []string{url, "8453:42", older + " --transport=sse"} {
		r := ask[inspect.CheckReport](d, append([]string{"agent", "check", "--send"}, strings.Fields(target)...)...)
		for _, c := range r.Checks {
			heraldtest.Equal(t, target+": "+c.Name+": "+c.Found, c.Verdict, "ok")
		}
		heraldtest.Equal(t, "checks", len(r.Checks), 15)
	}
	for _, id := range r.ids {
		if !probeID.MatchString(id) || id == inspect.ProbeDeliveryID {
			t.Errorf("the deliveryId %q is not a new one of a sample", id)
		}
	}
	for _, meta := range r.meta {
		list, several := meta["io.agentherald/delivery"].([]any)
		if !several {
			list = []any{meta["io.agentherald/delivery"]}
		}
		for _, about := range list {
			if m, _ := about.(map[string]any); m["probe"] != true {
				t.Errorf("a sample does not say that it is one: %v", meta)
			}
		}
	}
	d.says(0, "CHECK VERDICT FOUND reachable ok a server answers at http://127.0.0.1", "agent", "check", url)
}

// TestCheckFindsFaults checks that each broken receiver has exactly one fault, in the check of that fault.
func TestCheckFindsFaults(t *testing.T) {
	t.Parallel()
	d, herald := newCheckDesk(t)
	isError := func(when func(first bool, args map[string]any) bool) func(context.Context, bool, map[string]any) (*mcp.CallToolResult, error) {
		return func(_ context.Context, first bool, args map[string]any) (*mcp.CallToolResult, error) {
			if when(first, args) {
				return mcp.NewToolResultError("UNIQUE constraint failed"), nil
			}
			return mcp.NewToolResultText("thank you"), nil
		}
	}
	instead := func(answer http.HandlerFunc) func(r *receiver) {
		return func(r *receiver) {
			r.guard = func(*callers.Verifier, http.Handler) http.Handler { return answer }
		}
	}
	for name, c := range map[string]struct {
		check, found string
		adapt        func(*receiver)
	}{
		"another path": {"reachable", "HTTP 404", instead(http.NotFound)},
		"another Herald trusted": {"reachable", "this process signed with HERALD_PUBLIC_URL=" + herald + ": accept it, or register it and check CHAIN:AGENT",
			instead(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })},
		"a login page": {"protocol", "its content type is text/html", instead(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>Log in</html>")
		})},
		"an unknown revision": {"protocol", "1999-01-01", instead(func(w http.ResponseWriter, r *http.Request) {
			var request struct{ ID json.RawMessage }
			_ = json.NewDecoder(r.Body).Decode(&request)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"1999-01-01","capabilities":{},"serverInfo":{"name":"a","version":"1"}}}`, request.ID)
		})},
		"one session for all clients": {"protocol", "Server already initialized; open a session for each initialize request", instead(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: Server already initialized"}}`)
		})},
		"another invalid request": {"protocol", "unsupported protocolVersion; serve MCP in a revision from 2024-11-05", instead(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Invalid Request: unsupported protocolVersion"}}`)
		})},
		"a session of another process": {"reachable", "serve without sessions", instead(func(w http.ResponseWriter, r *http.Request) {
			var request struct {
				ID     json.RawMessage
				Method string
			}
			if _ = json.NewDecoder(r.Body).Decode(&request); request.Method != "initialize" {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Mcp-Session-Id", "a")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"a","version":"1"}}}`, request.ID)
		})},
		"another tool name": {"tools", "the agent offers no tool agent.receiveFeedback", func(r *receiver) {
			r.schemas["takeFeedback"] = r.schemas["agent.receiveFeedback"]
			delete(r.schemas, "agent.receiveFeedback")
		}},
		"a required score": {"schemas", "agent.receiveFeedback: for an event without a file, tags, a position on the chain and a score from 0 to 100, the tool's input schema refuses score", func(r *receiver) {
			r.schemas["agent.receiveFeedback"] = `{"type":"object","properties":{"deliveryId":{"type":"string"},"score":{"type":"number"}},"required":["deliveryId","score"]}`
		}},
		"addresses in lower case": {"schemas", "agent.receiveFeedback: the tool's input schema refuses clientAddress", func(r *receiver) {
			r.schemas["agent.receiveFeedback"] = `{"type":"object","properties":{"clientAddress":{"type":"string","pattern":"^0x[0-9a-f]{40}$"}}}`
		}},
		"a required time": {"schemas", "agent.receiveFeedback: for an event without a file, tags, a position on the chain and a score from 0 to 100, the tool's input schema refuses timestamp", func(r *receiver) {
			r.schemas["agent.receiveFeedback"] = `{"type":"object","properties":{"timestamp":{"type":"integer"}},"required":["timestamp"]}`
		}},
		"names in snake case": {"schemas", "agent.receiveFeedback: it allows no argument of Herald", func(r *receiver) {
			r.schemas["agent.receiveFeedback"] = `{"type":"object","properties":{"delivery_id":{"type":"string"}},"additionalProperties":false}`
		}},
		"a bounded feedback index": {"schemas", "agent.receiveFeedback: the tool's input schema refuses feedbackIndex", func(r *receiver) {
			r.schemas["agent.receiveFeedback"] = `{"type":"object","properties":{"feedbackIndex":{"type":"integer","maximum":1}}}`
		}},
		"batches of one": {"schemas", "agent.receiveFeedbackBatch: the tool's input schema refuses deliveries", func(r *receiver) {
			r.schemas["agent.receiveFeedbackBatch"] = strings.Replace(r.schemas["agent.receiveFeedbackBatch"], `"maxItems": 50`, `"maxItems": 1`, 1)
		}},
		"feedback refused": {"feedback", "UNIQUE constraint failed", func(r *receiver) {
			r.handle["agent.receiveFeedback"] = isError(func(bool, map[string]any) bool { return true })
		}},
		"a repeated delivery refused": {"repeat", "UNIQUE constraint failed", func(r *receiver) {
			r.handle["agent.receiveFeedback"] = isError(func(first bool, _ map[string]any) bool { return !first })
		}},
		"a batch answered in part": {"batch", "no valid result, or two, for element 2 of 2", func(r *receiver) {
			r.status = func(batch []string, id string) string { return map[bool]string{true: "accepted"}[id == batch[0]] }
		}},
		"a batch refused": {"batch", `the result of element 1 of 2 is "rejected"`, func(r *receiver) {
			r.status = func([]string, string) string { return "rejected" }
		}},
		"a batch that is to be sent again": {"batch", `the result of element 2 of 2 is "retry"`, func(r *receiver) {
			r.status = func(batch []string, id string) string {
				return map[bool]string{true: "accepted", false: "retry"}[id == batch[0]]
			}
		}},
		"large bodies refused": {"size", "HTTP 413", guarded(func(known *callers.Verifier, next http.Handler, w http.ResponseWriter, r *http.Request, body []byte) {
			if len(body) > 1<<20 {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
				return
			}
			known.Require(next).ServeHTTP(w, r)
		})},
		"retractions refused": {"revocation", "UNIQUE constraint failed", func(r *receiver) {
			r.handle["agent.receiveRevocation"] = isError(func(_ bool, args map[string]any) bool { return args["reason"] == "reorg" })
		}},
		"everyone served": {"unsigned", "it took a request without a signature", guarded(func(known *callers.Verifier, next http.Handler, w http.ResponseWriter, r *http.Request, _ []byte) {
			if r.Header.Get("Signature") != "" {
				next = known.Require(next)
			}
			next.ServeHTTP(w, r)
		})},
		"the digest not compared": {"altered", "it took a request whose body was changed after it was signed", guarded(func(known *callers.Verifier, next http.Handler, w http.ResponseWriter, r *http.Request, body []byte) {
			r.Body = io.NopCloser(bytes.NewReader(bytes.TrimSuffix(body, []byte(" ")))) // undoes the change
			known.Require(next).ServeHTTP(w, r)
		})},
		"the signature not verified": {"altered", "it took a request with an invalid signature", guarded(func(_ *callers.Verifier, next http.Handler, w http.ResponseWriter, r *http.Request, body []byte) {
			if r.Header.Get("Signature") == "" || bytes.HasSuffix(body, []byte(" ")) {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})},
		"errors as pages": {"errors", "to wrong arguments or an unknown tool (agent.receiveNothing): calling the agent's tool: the agent answered HTTP 500", guarded(func(known *callers.Verifier, next http.Handler, w http.ResponseWriter, r *http.Request, body []byte) {
			if bytes.Contains(body, []byte("receiveNothing")) {
				http.Error(w, "<html>something went wrong</html>", http.StatusInternalServerError)
				return
			}
			known.Require(next).ServeHTTP(w, r)
		})},
		"a slow answer": {"time", "agent.receiveValidation did not answer within 1 s", func(r *receiver) {
			r.handle["agent.receiveValidation"] = func(ctx context.Context, _ bool, _ map[string]any) (*mcp.CallToolResult, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := newReceiver(t, herald, c.adapt)
			env := slices.Clone(d.env)
			if c.check == "time" { // the others send a large file, also on a busy machine
				env = append(env, "HERALD_CALL_TIMEOUT=1s")
			}
			code, out, errs := worker(t, env, "agent", "check", "--send", "--json", url)
			if code != exitFailed || !strings.Contains(errs, "the server has faults (1, see above)") {
				t.Errorf("exit code %d: %s", code, errs)
			}
			r := decode[inspect.CheckReport](t, out)
			for _, check := range r.Checks {
				switch faulty := check.Verdict == "fault"; {
				case faulty != (check.Name == c.check):
					t.Errorf("%s: %s: %s", check.Name, check.Verdict, check.Found)
				case faulty && !strings.Contains(check.Found, c.found):
					t.Errorf("%s: %q lacks %q", check.Name, check.Found, c.found)
				}
			}
		})
	}
}

// TestCheckToken checks that a stored token goes to the agent that it is stored for, and never to a bare URL. A server
// that requires the token need not verify signatures.
func TestCheckToken(t *testing.T) {
	t.Parallel()
	d, herald := newCheckDesk(t)
	var mu sync.Mutex
	var sent []string
	_, url := newReceiver(t, herald, guarded(func(_ *callers.Verifier, next http.Handler, w http.ResponseWriter, r *http.Request, _ []byte) {
		mu.Lock()
		sent = append(sent, r.Header.Get("Authorization"))
		mu.Unlock()
		next.ServeHTTP(w, r)
	}))
	d.lists(fmt.Sprintf(`{"8453:42":{"transport":"http","url":%q}}`, url))
	d.answers(0, "is stored for", canary, "y\n", "token", "set", "8453:42", "--origin", url)
	for target, want := range map[string]string{url: "", "8453:42": "Bearer " + canary} {
		mu.Lock()
		sent = nil
		mu.Unlock()
		code, out, errs := worker(t, d.env, "agent", "check", "--send", "--json", target)
		r := decode[inspect.CheckReport](t, out)
		mu.Lock()
		if slices.ContainsFunc(sent, func(got string) bool { return got != want }) || len(sent) == 0 || strings.Contains(out+errs, canary) {
			t.Errorf("%s: %d requests with %q", target, len(sent), sent)
		}
		mu.Unlock()
		verdict := map[bool]string{true: "fault", false: "skipped"}[want == ""]
		if all := verdicts(r); all["unsigned"] != verdict || all["altered"] != verdict || code != map[bool]int{true: exitFailed}[want == ""] {
			t.Errorf("%s: exit code %d, %v", target, code, all)
		}
	}
}

// TestCheckWithoutStore checks a server where no database is configured: nothing is signed. A server whose schema allows
// no file does not pass as one that took a large file.
func TestCheckWithoutStore(t *testing.T) {
	t.Parallel()
	const noFile = `{"type":"object","properties":{"deliveryId":{"type":"string"}},"additionalProperties":false}`
	for _, c := range []struct{ publicURL, schema, size string }{{"", "", "ok"}, {"https://herald.example", "", "ok"}, {"", noFile, "skipped"}} {
		_, url := newReceiver(t, "http://127.0.0.1:1", func(r *receiver) {
			r.guard = func(_ *callers.Verifier, next http.Handler) http.Handler { return next }
			if c.schema != "" {
				r.schemas["agent.receiveFeedback"] = c.schema
			}
		})
		code, out, errs := worker(t, []string{"HERALD_PUBLIC_URL=" + c.publicURL, "HERALD_ALLOW_NETWORKS=127.0.0.0/8"}, "agent", "check", "--send", "--json", url)
		all := verdicts(decode[inspect.CheckReport](t, out))
		if code != 0 || all["unsigned"] != "skipped" || all["altered"] != "skipped" || all["feedback"] != "ok" || all["size"] != c.size {
			t.Errorf("%+v: exit code %d, %v\n%s", c, code, all, errs)
		}
	}
}
