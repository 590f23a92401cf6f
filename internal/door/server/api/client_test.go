package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/client"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func (w *world) newClient(token string) *client.Client {
	w.Helper()
	c, err := client.New(client.Config{URL: w.base + "/", Token: token})
	heraldtest.Must(w, err)
	return c
}

func TestClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.newClient(ownToken)
	job := json.RawMessage(jobOf(1, 1))
	first, err := c.Enqueue(t.Context(), job)
	if err != nil || first.Verdict != client.Accepted || first.ID == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := c.Enqueue(t.Context(), job); err != nil || again.Verdict != client.Known || again.ID != first.ID {
		t.Errorf("%+v, %v", again, err)
	}
	other, err := c.Enqueue(t.Context(), json.RawMessage(strings.Replace(jobOf(1, 1), `"99"`, `"98"`, 1)))
	if err != nil || other.Verdict != client.Conflict || other.Error.Field != "value" ||
		other.Error.Message != `value is "99" in the committed job and "98" in this one: committed jobs stay` {
		t.Errorf("%+v, %v", other, err)
	}
	bad, err := c.Enqueue(t.Context(), map[string]any{"type": "NewFeedback"})
	if err != nil || bad.Verdict != client.Refused || bad.Error.Field == "" {
		t.Errorf("%+v, %v", bad, err)
	}

	for _, name := range []string{first.ID, first.Key} {
		if d, err := c.Get(t.Context(), name); err != nil || d.ID != first.ID || d.Final() || !strings.Contains(string(d.Raw), "queued") {
			t.Errorf("%+v, %v", d, err)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if d, err := c.Wait(t.Context(), first.ID); err != nil || d.Status != "cancelled" || !d.Final() {
			t.Errorf("%+v, %v", d, err)
		}
	}()
	moveOne(t, w.operator.Cancel, first.ID)
	<-ended
	second, err := c.Enqueue(t.Context(), json.RawMessage(jobOf(1, 2)))
	heraldtest.Must(t, err)
	_, err = c.Wait(heraldtest.Within(t, time.Millisecond), second.ID)
	heraldtest.Fails(t, "Wait", err, context.DeadlineExceeded)

	var refused *client.Error
	if _, err := c.Get(t.Context(), "00000000-0000-4000-8000-000000000000"); !errors.As(err, &refused) || refused.Status != 404 || refused.Temporary() {
		t.Errorf("%v", err)
	}
	_, err = w.newClient(w.newToken("read").Token).Enqueue(t.Context(), job)
	heraldtest.Fails(t, "a token that may read", err, "(forbidden, HTTP 403)")
	for _, cfg := range []client.Config{{URL: "herald.example", Token: "x"}, {URL: "ftp://herald.example", Token: "x"}, {URL: "http://herald.example"}} {
		_, err := client.New(cfg)
		heraldtest.Fails(t, cfg.URL, err)
	}
}

func TestClientStream(t *testing.T) {
	t.Parallel()
	jobs := 2000
	if heraldtest.Soaks() {
		jobs = 100_000
	}
	w := newWorld(t)
	c := w.newClient(ownToken)
	sent := 0
	next := func() (any, error) {
		if sent == jobs {
			return nil, io.EOF
		}
		sent++
		return json.RawMessage(jobOf(1+sent%50, sent)), nil
	}
	heard := 0
	err := c.EnqueueStream(t.Context(), next, func(a client.Answer) error {
		heard++
		heraldtest.Equal(t, "the line", a.Line, int64(heard))
		heraldtest.Equal(t, "the verdict", a.Verdict, client.Accepted)
		return nil
	})
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "answers", heard, jobs)
	counts, err := records.New(w.store).Count(t.Context(), records.Filter{})
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "queued", counts[outcome.Queued], int64(jobs))
	// The connection of a stream serves further requests.
	for range 3 {
		for _, err := range c.Deliveries(t.Context(), client.Selection{Status: "cancelled"}) {
			t.Errorf("after the stream: %v", err)
		}
	}

	// EnqueueStream returns the error of the callback that fails first.
	broken := errors.New("the indexer broke")
	ignore := func(client.Answer) error { return nil }
	err = c.EnqueueStream(t.Context(), func() (any, error) { return nil, broken }, ignore)
	heraldtest.Fails(t, "a job that cannot be read", err, broken)
	sent = 0
	heraldtest.Fails(t, "an answer that cannot be handled",
		c.EnqueueStream(t.Context(), next, func(client.Answer) error { return broken }), broken)
	heraldtest.Fails(t, "a wrong token", w.newClient("wrong").EnqueueStream(t.Context(), next, ignore), "HTTP 401")
	ctx, cancel := context.WithCancel(t.Context())
	sent = 0
	heraldtest.Fails(t, "a cancelled stream",
		c.EnqueueStream(ctx, next, func(client.Answer) error { cancel(); return nil }), context.Canceled)
	// A stream that ends early is an error, even if the server ends it in an orderly way.
	sent = 0
	first := true
	err = c.EnqueueStream(t.Context(), next, func(client.Answer) error {
		if first {
			first = false
			go w.cutOff()
			<-w.gone
		}
		return nil
	})
	heraldtest.Fails(t, "a stream that was cut off", err)
	w = serveWorld(t, w.store)
	heraldtest.Equal(t, "deliveries",
		len(call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?limit=1", "").Deliveries), 1)
}

// TestClientStreamStops: the error of a stream that a stopping worker ends is Herald's answer, also if the client is
// writing a job that is longer than any buffer.
func TestClientStreamStops(t *testing.T) {
	t.Parallel()
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.CopyN(io.Discard, r.Body, 300_000)
		_, _ = io.WriteString(w, `{"error":{"code":"stopped","message":"the worker stops"}}`)
	}))
	defer worker.Close()
	c, err := client.New(client.Config{URL: worker.URL, Token: "x"})
	heraldtest.Must(t, err)
	long := map[string]string{"tag1": strings.Repeat("x", 100_000)}
	for range 20 {
		err := c.EnqueueStream(t.Context(), func() (any, error) { return long, nil }, func(client.Answer) error { return nil })
		var stopped *client.Error
		if !errors.As(err, &stopped) || stopped.Code != "stopped" || !stopped.Temporary() {
			t.Fatalf("%v", err)
		}
	}
}

// TestClientEvents resumes a stream after an event that was handled.
func TestClientEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.newClient(ownToken)
	first, err := c.Enqueue(t.Context(), json.RawMessage(jobOf(1, 1)))
	heraldtest.Must(t, err)
	enough := errors.New("enough")
	handled := make(chan client.Event, 1)
	streamed := make(chan error, 1)
	go func() {
		streamed <- c.Events(t.Context(), client.EventSelection{Agent: "8453:1"}, func(e client.Event) error {
			handled <- e
			return enough
		})
	}()
	var seen client.Event
	heraldtest.Await(t, "an event", func() bool { // the stream begins at a time that the test does not know
		moveOne(t, w.operator.Cancel, first.ID)
		moveOne(t, w.operator.Replay, first.ID)
		select {
		case seen = <-handled:
			return true
		default:
			return false
		}
	})
	if err := <-streamed; !errors.Is(err, enough) || seen.DeliveryID != first.ID || seen.ID == "" {
		t.Errorf("%+v, %v", seen, err)
	}
	second, err := c.Enqueue(t.Context(), json.RawMessage(jobOf(1, 2)))
	heraldtest.Must(t, err)
	moveOne(t, w.operator.Cancel, second.ID)
	err = c.Events(t.Context(), client.EventSelection{Statuses: []string{"cancelled"}, After: seen.ID}, func(e client.Event) error {
		if e.DeliveryID == second.ID {
			return enough
		}
		return nil
	})
	heraldtest.Fails(t, "Events", err, enough)
	err = w.newClient("wrong").Events(t.Context(), client.EventSelection{}, func(client.Event) error { return nil })
	heraldtest.Fails(t, "a wrong token", err, "HTTP 401")
}

// TestClientExample runs the examples of package client, while deliveries of another agent are cancelled and replayed for
// the stream of events.
func TestClientExample(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	program := filepath.Join(t.TempDir(), "client.test")
	compile := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "github.com/agentherald/herald/client")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0") // also under the race detector: packages that are compiled already
	out, err := compile.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(heraldtest.Within(t, time.Minute), program, "-test.v")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "API_URL="+w.base, "API_TOKEN="+ownToken)
	changed, err := w.newClient(ownToken).Enqueue(t.Context(), json.RawMessage(jobOf(1, 1)))
	heraldtest.Must(t, err)
	exited, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		first := true
		heraldtest.Await(t, "the examples to end", func() bool {
			page := call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?agent=8453:42&limit=1", "")
			if first && len(page.Deliveries) == 1 {
				moveOne(t, w.operator.Cancel, page.Deliveries[0].ID.String())
				first = false
			}
			moveOne(t, w.operator.Cancel, changed.ID)
			moveOne(t, w.operator.Replay, changed.ID)
			select {
			case <-exited:
				return true
			default:
				return false
			}
		})
	}()
	out, err = cmd.CombinedOutput()
	close(exited)
	want := "cancelled operator\nNewFeedback queued\nNewFeedback queued\nreplayed: queued\nwould replay: 1\n8453:1 true 0\n8453:42 true 0\nevent: cancelled operator\n"
	if err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%v: %s", err, out)
	}
	<-ended
	heraldtest.Equal(t, "deliveries",
		len(call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?status=queued&limit=1", "").Deliveries), 1)

	jobs := []string{jobOf(1, 1), `{"type":"NewFeedback","tag9":"x"}`}
	refused, err := w.newClient(ownToken).EnqueueMany(t.Context(), func() (any, error) {
		if len(jobs) == 0 {
			return nil, io.EOF
		}
		next := jobs[0]
		jobs = jobs[1:]
		return json.RawMessage(next), nil
	})
	if err != nil || len(refused) != 1 || refused[0].Line != 2 || !strings.Contains(refused[0].Error.Message, "did you mean tag1?") {
		t.Errorf("%+v, %v", refused, err)
	}
}

// TestClientNeedsNothing: the client package imports only the standard library.
func TestClientNeedsNothing(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}",
		"github.com/agentherald/herald/client").Output()
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "imported packages", len(strings.Fields(string(out))), 1)
}
