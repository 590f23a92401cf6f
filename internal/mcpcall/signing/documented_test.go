//go:build thirdparty

package signing_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// These tests run the Python agents to which docs/agent.md links, as they are. `make thirdparty` runs the tests.
// TestThirdPartyTypeScript runs the TypeScript agent.

func writeFile(t testing.TB, dir, name, text string) {
	t.Helper()
	heraldtest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// TestDocumentedPython checks that the Python middleware accepts only its Herald. Its agent does not run here, because its
// SDK is not available.
func TestDocumentedPython(t *testing.T) {
	h := newHerald(t)
	dir := t.TempDir()
	middleware, err := os.ReadFile("../../../examples/agent-python/callers.py")
	heraldtest.Must(t, err)
	writeFile(t, dir, "callers.py", string(middleware))
	writeFile(t, dir, "serve.py", `
import asyncio, base64, json, sys
from callers import OnlyHerald

async def app(scope, receive, send):
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message["body"]})

guarded = OnlyHerald(app, sys.argv[1], sys.argv[2])

async def ask(r):
    raw = r["target"].encode()
    scope = {"type": "http", "method": r["method"], "raw_path": raw.partition(b"?")[0], "query_string": raw.partition(b"?")[2],
             "headers": [(n.lower().encode(), v.encode("latin-1")) for n, v in r["headers"]]}
    body, sent = base64.b64decode(r["body"] or ""), []
    parts = [{"type": "http.request", "body": body[:5], "more_body": True}, {"type": "http.request", "body": body[5:], "more_body": False}]
    async def receive():
        return parts.pop(0)
    async def send(message):
        sent.append(message)
    await guarded(scope, receive, send)
    if sent[0]["status"] == 200 and sent[1]["body"] != body:
        return 500
    return sent[0]["status"]

for line in sys.stdin:
    print(asyncio.run(ask(json.loads(line))), flush=True)
`)
	const own = "https://agent.example"
	cmd := exec.CommandContext(heraldtest.Within(t, time.Minute), "python3", "serve.py",
		strings.ToUpper(h.server.URL)+"/", "https://Agent.example.:443/") // the configured addresses may have another spelling
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	in, err := cmd.StdinPipe()
	heraldtest.Must(t, err)
	out, err := cmd.StdoutPipe()
	heraldtest.Must(t, err)
	heraldtest.Must(t, cmd.Start())
	defer func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	h.refusals(t, own, func(r *http.Request) (status int) {
		body, _ := io.ReadAll(r.Body)
		asked := struct {
			Method  string      `json:"method"`
			Target  string      `json:"target"`
			Headers [][2]string `json:"headers"`
			Body    string      `json:"body"`
		}{r.Method, r.URL.RequestURI(), nil, base64.StdEncoding.EncodeToString(body)}
		for name, values := range r.Header {
			for _, v := range values {
				asked.Headers = append(asked.Headers, [2]string{name, v})
			}
		}
		heraldtest.Must(t, json.NewEncoder(in).Encode(asked))
		if _, err := fmt.Fscanln(out, &status); err != nil {
			t.Fatal(err)
		}
		return status
	})
}

// refusals checks that the agent accepts a request of Herald and refuses those of other signers, and those that were
// changed after signing. ask sends a request and returns the status.
func (h *herald) refusals(t *testing.T, own string, ask func(*http.Request) int) {
	t.Helper()
	stranger := newHerald(t)
	const target = "/mcp?x=1;y=%2F"
	const text = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	signed := func(by *herald, method, body string) *http.Request {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, own+target, strings.NewReader(body))
		heraldtest.Must(t, err)
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json, text/event-stream")
		} else {
			r.Body = http.NoBody
		}
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		heraldtest.Must(t, by.ring.Sign(r))
		return r
	}
	again := signed(h, http.MethodPost, text)
	for _, want := range []int{200, 401} {
		r := again.Clone(t.Context())
		r.Body, _ = again.GetBody()
		if got := ask(r); got != want {
			t.Errorf("%d, want %d, of a request and its copy", got, want)
		}
	}
	if got := ask(signed(h, http.MethodGet, "")); got == 401 || got == 503 {
		t.Errorf("GET: %d", got)
	}
	for name, change := range map[string]func(*http.Request){
		"unsigned": func(r *http.Request) { r.Header.Del("Signature-Input") },
		"another signature": func(r *http.Request) {
			r.Header.Set("Signature", signed(h, http.MethodPost, text).Header.Get("Signature"))
		},
		"another body":               func(r *http.Request) { setBody(r, text+" ") },
		"another query":              func(r *http.Request) { r.URL.RawQuery = "x=2" },
		"another method":             func(r *http.Request) { r.Method = http.MethodPut },
		"another type":               func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		"another revision":           func(r *http.Request) { r.Header.Set("Mcp-Protocol-Version", "2025-06-18") },
		"a session more":             func(r *http.Request) { r.Header.Set("Mcp-Session-Id", "s") },
		"a digest more":              func(r *http.Request) { r.Header.Add("Content-Digest", "sha-512=:AAAA:") },
		"another signer":             func(r *http.Request) { r.Header.Set("Signature-Agent", `sig1="`+stranger.server.URL+`"`) },
		"longer":                     change("Signature-Input", "expires=1", "expires=2"),
		"in another time":            change("Signature-Input", "created=1", "created=3"),
		"the body uncovered":         change("Signature-Input", `"content-digest" `, ""),
		"another algorithm":          change("Signature-Input", "ed25519", "hmac-sha256"),
		"another tag":                change("Signature-Input", "web-bot-auth", "web-bot"),
		"a parameter twice":          change("Signature-Input", `;alg=`, `;alg="none";alg=`),
		"covered twice":              change("Signature-Input", `"@method"`, `"@method" "@method"`),
		"nothing but brackets":       func(r *http.Request) { r.Header.Set("Signature-Input", "sig1=()") },
		"of a stranger, who says so": func(r *http.Request) { r.Header = signed(stranger, http.MethodPost, text).Header },
		"of a stranger, who does not": func(r *http.Request) {
			r.Header = signed(stranger, http.MethodPost, text).Header
			r.Header.Set("Signature-Agent", `sig1="`+h.server.URL+`"`)
		},
	} {
		r := signed(h, http.MethodPost, text)
		change(r)
		heraldtest.Equal(t, name, ask(r), http.StatusUnauthorized)
	}
	if n := h.asked.Load(); n != 1 {
		t.Errorf("the directory was asked for %d times", n)
	}
}

func setBody(r *http.Request, text string) {
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	r.GetBody = nil
}

func change(name, old, by string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, strings.Replace(r.Header.Get(name), old, by, 1)) }
}

// TestDocumentedPythonRetry checks that the Python agent answers 503 after a failed insert, so that Herald calls again.
// Like the SDK, the function sdk runs the tool in a task, and answers with status 200 after an exception.
func TestDocumentedPythonRetry(t *testing.T) {
	dir := t.TempDir()
	middleware, err := os.ReadFile("../../../examples/agent-python/retry.py")
	heraldtest.Must(t, err)
	writeFile(t, dir, "retry.py", string(middleware))
	writeFile(t, dir, "serve.py", `
import asyncio
from retry import RetryFailures, retried

async def tool(fails):
    with retried():
        if fails:
            raise OSError("the disk is full")

async def sdk(scope, receive, send):
    await asyncio.gather(asyncio.create_task(tool(scope["fails"])), return_exceptions=True)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"isError"})

async def ask(fails):
    sent = []
    async def send(message):
        sent.append(message["type"] + " " + str(message.get("status", message.get("body"))))
    await RetryFailures(sdk)({"type": "http", "fails": fails}, None, send)
    return sent

print(asyncio.run(ask(False)), asyncio.run(ask(True)))
`)
	cmd := exec.CommandContext(heraldtest.Within(t, time.Minute), "python3", "serve.py")
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	const want = `['http.response.start 200', "http.response.body b'isError'"] ` +
		`['http.response.start 503', "http.response.body b'try again: the tool failed'"]` + "\n"
	if err != nil || string(said) != want {
		t.Errorf("%v: %s, want %s", err, said, want)
	}
}
