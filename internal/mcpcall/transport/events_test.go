package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%T: %v", err, err))
	}
	return v
}

// TestEventsEndWithTheResponse checks that mcp-go sees an answer's event stream only up to the first response, however
// the bytes are split.
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
		nobody   bool // no request waits for an answer
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
			rt := &roundTripper{HTTPConfig{Base: eventNetwork{in}, MaxAnswerBytes: 1 << 20, Now: time.Now}, "http://a.example"}
			x := &exchange{response: Response{ID: mcp.NewRequestId(int64(3))}}
			if tt.nobody {
				x.response.ID = mcp.RequestId{}
			}
			ctx := withExchange(t.Context(), x)
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://a.example/", http.NoBody)
			res, err := rt.RoundTrip(req)
			heraldtest.Must(t, err)
			got, err := io.ReadAll(res.Body)
			if err != nil || string(got) != tt.want {
				t.Errorf("%s, %s: %q, %v", name, way, got, err)
			}
			_ = res.Body.Close()
		}
	}
}

// eventNetwork answers every request with these events.
type eventNetwork struct{ events io.Reader }

func (a eventNetwork) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(a.events)}, nil
}

func TestEndpointEvent(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"/post?s=1":                          "https://a.example/post?s=1",
		"post":                               "https://a.example/v1/post",
		"?s=1":                               "https://a.example/v1/sse?s=1",
		"https://A.example:443/p#x":          "https://A.example:443/p",
		"":                                   "",
		"http://a.example/post":              "", // a downgrade from https
		"https://a.example:444/post":         "",
		"https://b.example/post":             "",
		"//b.example/post":                   "",
		"https://a.example.b.example/":       "",
		"https://u:p@a.example/post":         "",
		"file:///etc/passwd":                 "",
		"javascript:1":                       "",
		"https:post":                         "",
		"%zz":                                "",
		"/" + strings.Repeat("x", 5000):      "",
		"https://a.example\\@b.example/post": "",
	} {
		base := must(url.Parse("https://a.example/v1/sse"))
		got, err := endpointTarget(base, data)
		if got != want || want == "" && !errors.As(err, new(*BadAnswerError)) {
			t.Errorf("%.60q: got %q, %v; want %q", data, got, err, want)
		}
	}
}

func TestEventReader(t *testing.T) {
	t.Parallel()
	in := "\uFEFFevent: first\ndata: x\n\n: hello\n\nevent: endpoint\r\ndata: /p\r\n\r\ndata:a\ndata: b\ndata\nid: 7\nretry: 1\n\nevent: only a name\n\ndata:\n\nunknown: x\ndata: c\n\ndata: cut off"
	r := newEventReader(strings.NewReader(in), 1000)
	for _, want := range []event{{"first", []byte("x"), 22}, {"endpoint", []byte("/p"), 29}, {"", []byte("a\nb\n"), 36}, {"", nil, 7}, {"", []byte("c"), 20}} {
		got, err := r.nextEvent()
		if err != nil || got.name != want.name || !bytes.Equal(got.data, want.data) || got.size != want.size {
			t.Fatalf("got %q %q of %d bytes, %v; want %q %q of %d", got.name, got.data, got.size, err, want.name, want.data, want.size)
		}
	}
	_, err := r.nextEvent()
	heraldtest.Fails(t, "at the end", err, io.EOF)
	for name, in := range map[string]string{
		"a line": "data: " + strings.Repeat("x", 10_000),
		"lines":  strings.Repeat("data: x\n", 2000),
		"others": strings.Repeat(": x\n", 2000),
	} {
		r := newEventReader(strings.NewReader(in), 1000)
		if _, err := r.nextEvent(); !errors.As(err, new(*TooLargeError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := strings.Repeat("x", 9000)
	r = newEventReader(strings.NewReader("data: "+long+"\n\n"), 10_000)
	if e, err := r.nextEvent(); err != nil || string(e.data) != long {
		t.Errorf("a long line: %d bytes, %v", len(e.data), err)
	}
}

// FuzzEvents compares the reader with the rules of WHATWG HTML §9.2.6, for streams whose lines end with LF or CRLF.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("\uFEFFevent: first\ndata: x\n\n: hello\r\n\r\ndata:a\ndata: b\ndata\nid: 7\n\ndata:\n\nevent: x\n\ndata: cut off"))
	f.Fuzz(func(t *testing.T, in []byte) {
		text := strings.TrimPrefix(strings.ReplaceAll(string(in), "\r\n", "\n"), "\uFEFF")
		if strings.Contains(text, "\r") {
			return
		}
		r := newEventReader(bytes.NewReader(in), 1<<20)
		blocks := strings.Split("\n"+text, "\n\n") // the first line may be empty
		for _, block := range blocks[:len(blocks)-1] {
			var name string
			var data []string
			for _, line := range strings.Split(block, "\n") {
				field, value, _ := strings.Cut(line, ":")
				switch value = strings.TrimPrefix(value, " "); field {
				case "event":
					name = value
				case "data":
					data = append(data, value)
				}
			}
			if data == nil {
				continue
			}
			e, err := r.nextEvent()
			if err != nil || e.name != name[:min(len(name), maxEventName)] || string(e.data) != strings.Join(data, "\n") {
				t.Fatalf("%q: got %q %q, %v; want %q %q", in, e.name, e.data, err, name, data)
			}
		}
		_, err := r.nextEvent()
		heraldtest.Fails(t, "at the end", err, io.EOF)
	})
}

// FuzzStream checks that any stream is read to its end within the limits, and that only an answer with the id of a
// pending request counts as one.
func FuzzStream(f *testing.F) {
	f.Add([]byte("event: endpoint\ndata: /post?s=1\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"))
	f.Add([]byte("event: endpoint\ndata: https://b.example/\n\n"))
	f.Add([]byte("data: {\"id\":1,\"method\":\"ping\"}\r\n\r\n: x\n\ndata: {\"method\":\"notifications/message\"}\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		base := must(url.Parse("https://a.example/sse"))
		s := NewStream(HTTPConfig{URL: base, MaxAnswerBytes: 512, Now: time.Now, Life: t.Context()}, nil)
		p := &pendingRequest{answer: make(chan *mcptransport.JSONRPCResponse, 1), cancelPost: func() {}}
		p.posted.Store(true)
		s.pending["int64:1"] = p
		s.SetNotificationHandler(func(mcp.JSONRPCNotification) {})
		if err := s.readEvents(bytes.NewReader(raw), make(chan struct{})); err == nil {
			t.Fatal("ended without an error")
		}
		if s.postURL != "" {
			u, err := url.Parse(s.postURL)
			if err != nil || netguard.OriginOf(u) != netguard.OriginOf(base) || u.User != nil {
				t.Fatalf("would post to %q", s.postURL)
			}
		}
		heraldtest.Must(t, s.Close())
	})
}
