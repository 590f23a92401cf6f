package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// listener follows the events. When the connection ends, it reconnects with its position.
type listener struct {
	base   func() string
	query  string
	last   string // Last-Event-ID
	ready  func() // called when it is connected
	events []records.DeliveryEvent
	until  func(records.DeliveryEvent) bool // it stops after the event for which until returns true
}

func (l *listener) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		done, err := l.listen(ctx)
		if done || ctx.Err() != nil {
			return ctx.Err()
		}
		_ = err // the server ended the connection: connect again
	}
	return ctx.Err()
}

func (l *listener) listen(ctx context.Context) (done bool, err error) {
	r, err := http.NewRequestWithContext(ctx, "GET", l.base()+"/v1/events"+l.query, nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("Authorization", "Bearer "+ownToken)
	if l.last != "" {
		r.Header.Set("Last-Event-ID", l.last)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(res.Body)
		return false, fmt.Errorf("%d: %s", res.StatusCode, body)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			l.last = value
			if l.ready != nil {
				l.ready()
				l.ready = nil
			}
			if len(l.events) > 0 && l.until(l.events[len(l.events)-1]) {
				return true, nil
			}
		case "data":
			var e records.DeliveryEvent
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				return false, err
			}
			l.events = append(l.events, e)
		}
	}
	return false, lines.Err()
}

// TestEveryListenerReceivesEveryChange: fifty listeners receive every change once and in one order, although their
// server is stopped. In make soak there are a thousand.
func TestEveryListenerReceivesEveryChange(t *testing.T) {
	t.Parallel()
	const deliveries = 50
	listeners := 50
	if heraldtest.Soaks() {
		listeners = 1000
	}
	first := newWorld(t)
	second := serveWorld(t, first.store)
	var bases sync.Map
	bases.Store("now", first.base)
	base := func() string {
		b, _ := bases.Load("now")
		return b.(string)
	}

	var ids []string
	for i := range deliveries {
		ids = append(ids, first.enqueue(1, i+1))
	}
	last := ids[len(ids)-1]
	ctx := heraldtest.Within(t, 2*time.Minute)
	all := make([]*listener, listeners)
	var ready, gone sync.WaitGroup
	for i := range all {
		ready.Add(1)
		all[i] = &listener{base: base, query: "?status=", ready: ready.Done, // an empty status selects all
			until: func(e records.DeliveryEvent) bool { return e.DeliveryID.String() == last && e.Status == outcome.Queued }}
		gone.Go(func() {
			if err := all[i].follow(ctx); err != nil {
				t.Errorf("listener %d: %v after %d events", i, err, len(all[i].events))
			}
		})
	}
	ready.Wait()

	for i, id := range ids {
		moveOne(t, first.operator.Cancel, id)
		moveOne(t, first.operator.Replay, id)
		if i == deliveries/2 { // ends the connections of the first server
			bases.Store("now", second.base)
			first.cutOff()
		}
	}
	gone.Wait()
	want := 2 * deliveries
	for i, l := range all {
		if len(l.events) != want {
			t.Fatalf("listener %d heard of %d changes, want %d", i, len(l.events), want)
		}
		for k, e := range l.events {
			status := []outcome.Status{outcome.Cancelled, outcome.Queued}[k%2]
			if e.DeliveryID.String() != ids[k/2] || e.Status != status {
				t.Fatalf("listener %d, change %d: %+v", i, k, e)
			}
		}
	}
}

func moveOne(t *testing.T, move func(context.Context, operator.MoveRequest) (*operator.MoveReport, error), id string) {
	t.Helper()
	if r, err := move(t.Context(), operator.MoveRequest{IDs: []string{id}, Actor: "the test"}); err != nil || r.Moved != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestEventsOfAFilter: the stream has the events of an agent, in any spelling, with one of the statuses.
func TestEventsOfAFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := w.enqueue(1, 1)
	other := w.enqueue(2, 1)
	ready := make(chan struct{})
	l := &listener{base: func() string { return w.base }, query: "?agent=08453:01&status=&status=cancelled&status=held", ready: func() { close(ready) },
		until: func(records.DeliveryEvent) bool { return true }}
	heard := make(chan error, 1)
	go func() { heard <- l.follow(t.Context()) }()
	heraldtest.Receive(t, "the start of the stream", ready)
	moveOne(t, w.operator.Cancel, other)
	moveOne(t, w.operator.Cancel, mine)
	if err := heraldtest.Receive(t, "the change", heard); err != nil || len(l.events) != 1 || l.events[0].DeliveryID.String() != mine {
		t.Errorf("%+v, %v", l.events, err)
	}
	for query, field := range map[string]string{"?agent=8453": "agent", "?status=x": "status", "?lastEventId=x": "Last-Event-ID"} {
		heraldtest.Equal(t, query, call[api.ErrorAnswer](w, 400, "GET", "/v1/events"+query, "").Error.Field, field)
	}
}

// TestGapEvent: a listener that returns after the events were deleted receives a gap event. Postgres deletes them by
// its own clock, which is two minutes ahead of the worker's.
func TestGapEvent(t *testing.T) {
	t.Parallel()
	st := openStore(t, false)
	_, err := st.Conns.Exec(t.Context(), `CREATE SCHEMA fast;
		CREATE FUNCTION fast.now() RETURNS timestamptz LANGUAGE sql STABLE AS
			$$ SELECT pg_catalog.now() + interval '2 minutes' $$;
		DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET search_path = fast, pg_catalog', current_database());
		END $$`,
		pgx.QueryExecModeSimpleProtocol)
	heraldtest.Must(t, err)
	st.Conns.Reset() // new connections have this clock
	w := serveWorld(t, st)
	old := records.EventCursor{At: time.Now().Add(time.Minute - retention.EventRetention).Unix(), Xid: 3, ID: 1}
	res := w.send("GET", "/v1/events", ownToken, "", nil, func(r *http.Request) { r.Header.Set("Last-Event-ID", old.String()) })
	head := make([]byte, 60)
	if _, err := io.ReadFull(res.Body, head); err != nil || !strings.Contains(string(head), "event: gap") {
		t.Errorf("%q, %v", head, err)
	}
}

// TestHeadOfEvents: the answer to HEAD ends at once. It is no stream, which would keep the connection and one of the
// places for listeners.
func TestHeadOfEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	for range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodHead, w.base+"/v1/events", nil)
		heraldtest.Must(t, err)
		r.Header.Set("Authorization", "Bearer "+ownToken)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		heraldtest.Equal(t, "the answer", fmt.Sprint(res.StatusCode, " ", res.Header.Get("Content-Type")), "200 text/event-stream")
	}
}
