package api

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/store/retention"
)

const (
	maxListeners  = 4096
	feedSize      = 4096 // events kept in memory for listeners that are slightly behind
	feedBatch     = 1000 // events that the feed reads at once
	listenerBatch = 200  // events that a listener holds while it sends them, which may take hours
	maxCatchingUp = 3    // listeners that read Postgres concurrently; a restart makes all of them reconnect
	heartbeat     = 15 * time.Second
	eventTimeout  = 20 * time.Second // bounds the sending of one write to a listener
	feedTimeout   = 10 * time.Second // bounds a read from Postgres
)

// feed reads new events once for all listeners, while there are any, and keeps the newest in memory. Listeners that are
// further behind read Postgres themselves.
type feed struct {
	log      *records.Store
	poll     time.Duration
	logger   *slog.Logger
	catching chan struct{}

	mu        sync.Mutex
	events    []records.DeliveryEvent // the newest, in order
	since     records.EventCursor     // position before the first of events
	following bool                    // events is complete after since, and is kept up to date while listeners exist
	losses    int                     // how often Postgres turned out to have lost events that the feed had read
	listeners int
	changed   chan struct{} // closed when new events may be available
}

func newFeed(log *records.Store, poll time.Duration, logger *slog.Logger) *feed {
	return &feed{log: log, poll: poll, logger: logger, catching: make(chan struct{}, maxCatchingUp),
		changed: make(chan struct{})}
}

// run polls for events until ctx ends.
func (f *feed) run(ctx context.Context) {
	tick := time.Tick(f.poll)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		if err := f.readNext(ctx); err != nil && ctx.Err() == nil {
			f.restart()
			f.logger.Warn("events could not be read; listeners wait", logging.About(logging.Postgres), "error", err)
		}
	}
}

// restart makes the feed begin at the end of the log as soon as the log can be read again; it may be another database
// then. Listeners read the events in between themselves.
func (f *feed) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.following = false
}

// readNext reads new events if there are listeners.
func (f *feed) readNext(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	f.mu.Lock()
	listeners, following, last := f.listeners, f.following, f.lastPosition()
	f.following = f.following && listeners > 0
	f.mu.Unlock()
	if listeners == 0 {
		return nil
	}
	if !following {
		start, err := f.log.LastEvent(ctx)
		if err != nil {
			return err
		}
		f.mu.Lock()
		if start.Xid < last.Xid {
			f.losses++
		}
		f.since, f.events, f.following = start, nil, true
		f.wakeListeners() // listeners read the events before start themselves
		f.mu.Unlock()
		return nil
	}
	for {
		news, err := f.log.EventsAfter(ctx, last, feedBatch)
		if err != nil {
			return err
		}
		if len(news) == 0 {
			return f.checkPosition(ctx, last)
		}
		f.add(news)
		if len(news) < feedBatch {
			return nil
		}
		last = news[len(news)-1].Cursor
	}
}

// checkPosition restarts the feed if its last position is after the end of the log. Then Postgres has lost events that
// the feed had read, for example because a standby without them took over, or because a backup was restored. It gives
// their transaction ids to new events, which would otherwise be omitted until the ids reach the last position. A loss
// is not noticed if they have reached it before, and then the new events with the ids of lost ones are omitted.
func (f *feed) checkPosition(ctx context.Context, last records.EventCursor) error {
	end, err := f.log.LastEvent(ctx)
	if err == nil && end.Xid < last.Xid {
		f.restart()
	}
	return err
}

// countLosses returns how often Postgres has lost events, and the position before the events that the feed has in
// memory.
func (f *feed) countLosses() (losses int, since records.EventCursor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.losses, f.since
}

// lastPosition returns the position of the last event in memory. The caller holds the lock.
func (f *feed) lastPosition() records.EventCursor {
	if len(f.events) == 0 {
		return f.since
	}
	return f.events[len(f.events)-1].Cursor
}

func (f *feed) add(news []records.DeliveryEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, news...)
	if over := len(f.events) - feedSize; over > 0 {
		f.since = f.events[over-1].Cursor
		f.events = slices.Clone(f.events[over:])
	}
	f.wakeListeners()
}

// wakeListeners makes all listeners read again. The caller holds the lock.
func (f *feed) wakeListeners() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// join registers a listener until leave is called.
func (f *feed) join() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners++
	return func() {
		f.mu.Lock()
		f.listeners--
		f.mu.Unlock()
	}
}

// next returns the first listenerBatch events after a position, in order. If it returns none, changed is closed when
// there may be some.
func (f *feed) next(ctx context.Context, after records.EventCursor) (_ []records.DeliveryEvent, changed <-chan struct{},
	err error) {
	f.mu.Lock()
	if f.following && compareCursors(after, f.since) >= 0 {
		i, found := slices.BinarySearchFunc(f.events, after, func(e records.DeliveryEvent, at records.EventCursor) int {
			return compareCursors(e.Cursor, at)
		})
		if found {
			i++
		}
		// A part of f.events would keep the whole array in memory.
		news, changed := slices.Clone(f.events[i:min(i+listenerBatch, len(f.events))]), f.changed
		f.mu.Unlock()
		return news, changed, nil
	}
	changed = f.changed
	f.mu.Unlock()

	select {
	case f.catching <- struct{}{}:
		defer func() { <-f.catching }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	news, err := f.log.EventsAfter(ctx, after, listenerBatch)
	return news, changed, err
}

func compareCursors(a, b records.EventCursor) int {
	return cmp.Or(cmp.Compare(a.Xid, b.Xid), cmp.Compare(a.ID, b.ID))
}

// eventFilter selects the events of a stream.
type eventFilter struct {
	agent    string // CHAIN:AGENT
	statuses []string
}

func (f eventFilter) takes(e records.DeliveryEvent) bool {
	return (f.agent == "" || f.agent == erc8004.FormatAgent(e.ChainID, e.AgentID)) &&
		(len(f.statuses) == 0 || slices.Contains(f.statuses, string(e.Status)))
}

// streamEvents streams changes of status, beginning after Last-Event-ID or, without it, now.
func (a *API) streamEvents(w http.ResponseWriter, r *http.Request, v server.Visitor) {
	agent, statuses, err := operator.ParseEventFilter(r.URL.Query().Get("agent"), r.URL.Query()["status"])
	if err != nil {
		a.answerError(w, r, err)
		return
	}
	filter := eventFilter{agent, statuses}
	losses, _ := a.feed.countLosses() // before the position is read: a later loss may concern it
	at, ahead, gap, err := a.startPosition(r)
	if err != nil {
		a.answerError(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // keeps proxies from buffering the stream
	if r.Method == http.MethodHead {
		return // a stream without a body would keep its place among the listeners until the client disconnects
	}
	release, ok := a.listening.acquire(v.Name)
	if !ok {
		a.answerError(w, r,
			refuse(http.StatusTooManyRequests, "too_many_requests", "", "as many as may be listen already: try again"))
		return
	}
	defer release()
	defer a.feed.join()()

	s := &eventStream{w: w, control: http.NewResponseController(w)}
	s.write("retry: 2000\n")
	s.writeStart(at, gap)
	ctx, stop := v.WhileAllowed(r.Context())
	defer stop()
	a.followEvents(ctx, s, filter, at, ahead, losses)
}

// startPosition returns the position in Last-Event-ID, or the current one without it, and how far Postgres' clock, by
// which events are dropped, is ahead of this machine's. gap reports that events after the position may have been
// dropped.
func (a *API) startPosition(r *http.Request) (at records.EventCursor, ahead time.Duration, gap bool, err error) {
	id := r.Header.Get("Last-Event-ID")
	if id == "" {
		id = r.URL.Query().Get("lastEventId") // for clients that cannot set headers
	}
	if id != "" {
		if at, err = records.ParseEventCursor(id); err != nil {
			return at, 0, false, refuse(http.StatusBadRequest, "invalid_request", "Last-Event-ID", "%s", err.Error())
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), feedTimeout)
	defer cancel()
	now, err := a.Events.LastEvent(ctx)
	ahead = time.Until(time.Unix(now.At, 0))
	switch {
	case err != nil || id == "":
		return now, ahead, false, err
	case at.Xid > now.Xid: // the position is of another database: restoring a dump restarts transaction ids
		return now, ahead, true, nil
	}
	return at, ahead, now.At-at.At > int64(retention.EventRetention.Seconds()), nil
}

// followEvents sends events until the listener disconnects, its token is revoked, or the worker stops. ahead is a
// result of startPosition. losses is how often Postgres had lost events before. After another loss, the listener gets a
// gap, and continues with the events that the feed has in memory.
func (a *API) followEvents(ctx context.Context, s *eventStream, filter eventFilter, at records.EventCursor,
	ahead time.Duration, losses int) {
	alive := time.Tick(heartbeat)
	for s.err == nil && ctx.Err() == nil {
		if n, since := a.feed.countLosses(); n > losses {
			losses, at = n, since
			s.writeStart(at, true)
		}
		news, changed, err := a.feed.next(ctx, at)
		if err != nil {
			return // the listener reconnects with its position
		}
		for _, e := range news {
			if filter.takes(e) {
				s.writeEvent(e)
			}
			at = e.Cursor
		}
		if len(news) > 0 {
			s.flush()
			continue
		}
		select {
		case <-changed:
		case <-alive:
			// The heartbeat carries the position with the current time. Otherwise a listener whose filter matches few
			// events would reconnect with an old position, and get a gap.
			at.At = time.Now().Add(ahead).Unix()
			s.write(": alive\n")
			s.writePosition(at)
			s.flush()
		case <-ctx.Done():
			return
		}
	}
}

// eventStream writes server-sent events (WHATWG HTML §9.2). After an error it writes nothing more.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	err     error
}

func (s *eventStream) write(text string) {
	if s.err == nil {
		_ = s.control.SetWriteDeadline(time.Now().Add(eventTimeout))
		_, s.err = s.w.Write([]byte(text))
	}
}

// writeStart writes the listener's position, after an event gap if events before the position may be missing.
func (s *eventStream) writeStart(at records.EventCursor, gap bool) {
	if gap {
		s.write("event: gap\ndata: {\"message\":\"events before this were dropped: read the deliveries again\"}\n")
	}
	s.writePosition(at)
	s.flush()
}

// writePosition ends an event with its id. Without an event it only updates the listener's position.
func (s *eventStream) writePosition(at records.EventCursor) { s.write("id: " + at.String() + "\n\n") }

func (s *eventStream) writeEvent(e records.DeliveryEvent) {
	body, _ := json.Marshal(e) // cannot fail: it encodes strings, numbers and a time of Postgres
	s.write("event: delivery\ndata: " + string(body) + "\n")
	s.writePosition(e.Cursor)
}

func (s *eventStream) flush() {
	if s.err == nil {
		s.err = s.control.Flush()
	}
}
