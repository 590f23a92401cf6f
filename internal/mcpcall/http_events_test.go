package mcpcall

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"go.uber.org/goleak"
)

// An agent answers one request with several responses at once. mcp-go has room for two, and whoever writes the third would wait for ever.
// Not parallel: it looks for goroutines.
func TestOneResponseForARequest(t *testing.T) {
	before := goleak.IgnoreCurrent()
	srv := httptest.NewServer(&agent{on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		if method != "tools/call" {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		message := fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"%%d\"}]}}\n\n", id)
		_, _ = fmt.Fprintf(w, message+message+message+message, 1, 2, 3, 4)
		return true
	}})
	p := newPool(t)
	for range 3 {
		a, err := p.Call(within(t, 10*time.Second), Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
		if err != nil || a.Text != "1" {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if err := p.Close(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	srv.Close()
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// What mcp-go sees of an event stream that answers a request ends with the first response, however the bytes come.
func TestEventsEndWithTheResponse(t *testing.T) {
	t.Parallel()
	const (
		note    = "event: message\r\nid: 1\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\r\n\r\n"
		ask     = ": comment\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\n\n"
		broken  = "data: {\"id\":1,\n\ndata:\n\n\n"
		answer  = "id: 2\nretry: 5\ndata: {\"jsonrpc\":\"2.0\",\ndata:\"id\":\"other\",\"result\":{}}\n\n"
		failed  = "data:{\"jsonrpc\":\"2.0\",\"id\":3,\"error\":{\"code\":-1,\"message\":\"no\"}}\n\r\n"
		shouted = "data: {\"id\":3,\"METHOD\":\"ping\"}\n\n"
	)
	for name, tt := range map[string]struct {
		in, want string
		nobody   bool // waits
	}{
		"an answer":           {in: note + ask + answer + answer, want: note + ask + answer},
		"an error":            {in: failed + note, want: failed},
		"what is nothing":     {in: broken + note + answer + broken, want: broken + note + answer},
		"another's spelling":  {in: shouted + answer, want: shouted},
		"without its end":     {in: note + strings.TrimSuffix(answer, "\n"), want: note + strings.TrimSuffix(answer, "\n")},
		"nobody waits for it": {in: note + answer + answer, want: note + answer + answer, nobody: true},
		"many lines":          {in: strings.Repeat("data: \n", maxEventLines) + "\n" + answer + note, want: strings.Repeat("data: \n", maxEventLines) + "\n" + answer},
	} {
		for way, in := range map[string]io.Reader{"whole": strings.NewReader(tt.in), "bytes": iotest.OneByteReader(strings.NewReader(tt.in)),
			"with its end": iotest.DataErrReader(strings.NewReader(tt.in))} {
			rt := &roundTripper{base: eventNetwork{in}, origin: "http://a.example:80", limit: 1 << 20, now: time.Now}
			x := &exchange{id: mcp.NewRequestId(int64(3))}
			if tt.nobody {
				x.id = mcp.RequestId{}
			}
			req := httptest.NewRequestWithContext(context.WithValue(t.Context(), exchangeKey{}, x), http.MethodPost, "http://a.example/", http.NoBody)
			res, err := rt.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(res.Body)
			if err != nil || string(got) != tt.want {
				t.Errorf("%s, %s: %q, %v", name, way, got, err)
			}
			_ = res.Body.Close()
		}
	}
}

// eventNetwork is a network that answers with these events.
type eventNetwork struct{ events io.Reader }

func (a eventNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(a.events)}, nil
}
