package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/app"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// timeline prints events in the order in which they are reported. Reporters do not wait for the terminal.
type timeline struct {
	events chan func()
	done   chan struct{}
	out    io.Writer

	mu      sync.Mutex
	worker  *app.Worker
	began   time.Time
	numbers map[string]int // agent id → story
	ids     map[int]uuid.UUID
	later   map[uuid.UUID]int // delivery → story; also for later feedback
	next    int

	retractions map[int]uuid.UUID // story → delivery that retracts its feedback
}

func newTimeline(out io.Writer) *timeline {
	t := &timeline{events: make(chan func(), 1024), done: make(chan struct{}), out: out, began: time.Now(),
		numbers: map[string]int{}, ids: map[int]uuid.UUID{}, later: map[uuid.UUID]int{},
		retractions: map[int]uuid.UUID{}}
	go func() {
		defer close(t.done)
		for event := range t.events {
			event()
		}
	}()
	return t
}

// close waits until all events are printed. Nothing may be reported afterwards.
func (t *timeline) close() {
	close(t.events)
	<-t.done
}

func (t *timeline) printLine(text string) { t.events <- func() { fmt.Fprintln(t.out, text) } }

func (t *timeline) printFact(name, text string) { t.printLine(fmt.Sprintf("  %-12s %s", name, text)) }

// printStep prints one step of a story.
func (t *timeline) printStep(number int, what, detail string) {
	at := time.Since(t.began)
	t.printLine(fmt.Sprintf("[%d] %7.3fs  %-9s %s", number, at.Seconds(), what, text.Printable(detail)))
}

func (t *timeline) followWorker(w *app.Worker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.worker = w
}

// announceStories prints the stories' titles and starts the clock.
func (t *timeline) announceStories(stories []*story) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printLine("")
	for i, s := range stories {
		t.numbers[s.agent.String()] = i + 1
		t.printLine(fmt.Sprintf("[%d] agent %s: %s", i+1, s.agent, s.title))
	}
	t.next = len(stories)
	t.printLine("")
	t.began = time.Now()
}

// numberOf returns the number of a job's story. Later feedback gets the next free number.
func (t *timeline) numberOf(j job.Job) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := j.ID()
	if n, ok := t.later[id]; ok {
		return n
	}
	n, ok := t.numbers[j.AgentID.String()]
	if _, taken := t.ids[n]; !ok || taken {
		t.next++
		n = t.next
	}
	t.ids[n], t.later[id] = id, n
	return n
}

// tellRead prints events that the worker has read from the chain.
func (t *timeline) tellRead(r watch.Report) {
	for i, e := range r.Events {
		// An event that was mined again in another block is known and not reported.
		if e.Err == nil && e.Job.Kind == job.KindNewFeedback && r.Answers[i].Verdict == ledger.Accepted {
			n := t.numberOf(e.Job)
			t.printStep(n, "mined", fmt.Sprintf("block %d, transaction %s", e.Job.BlockNumber,
				e.Job.TransactionHash.Hex()[:18]+"…"))
			t.printStep(n, string(ledger.Accepted), fmt.Sprintf("delivery %s", r.Answers[i].ID))
		}
	}
	for _, v := range r.Vanished {
		t.tellVanished(v)
	}
}

// tellVanished reports feedback that a reorg removed from the chain. The retraction's delivery belongs to the same
// story.
func (t *timeline) tellVanished(v ledger.Vanished) {
	t.mu.Lock()
	number, known := t.later[v.ID]
	if known && v.Retraction != uuid.Nil {
		t.later[v.Retraction], t.retractions[number] = number, v.Retraction
	}
	t.mu.Unlock()
	switch {
	case !known:
	case v.Retraction != uuid.Nil:
		t.printStep(number, "vanished", fmt.Sprintf("the agent gets a retraction: delivery %s", v.Retraction))
	default:
		t.printStep(number, "vanished", "cancelled: the agent was not called")
	}
}

// words maps steps to the words that are printed. Other steps are not printed.
var words = map[string]string{"check": "checked", "resolve": "resolved", "fetch": "file", "compose": "composed",
	"call": "called", "record": "recorded"}

// traceStep receives the steps of deliveries.
func (t *timeline) traceStep(s delivery.Step) {
	word, printed := words[s.Name]
	if !printed {
		return
	}
	t.mu.Lock()
	number, known := t.later[s.DeliveryID]
	worker := t.worker
	t.mu.Unlock()
	if !known {
		return
	}
	if s.Name == "record" && worker != nil {
		t.tellRecorded(number, worker.Store, s)
		return
	}
	t.printStep(number, word, fmt.Sprintf("%s  (%s)", s.Detail, s.Took.Round(100*time.Microsecond)))
}

// tellRecorded prints the recorded outcome. It reads the row on the printing goroutine, because the trace must not
// wait.
func (t *timeline) tellRecorded(number int, st *store.Store, s delivery.Step) {
	at := time.Since(t.began)
	t.events <- func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		text := s.Detail
		if d, err := st.Delivery(ctx, s.DeliveryID); err == nil {
			text = describeOpen(d, time.Now())
		}
		fmt.Fprintf(t.out, "[%d] %7.3fs  %-9s %s (attempt %d)\n", number, at.Seconds(), "recorded", text, s.Attempt)
	}
}

// awaitStories waits until all stories have ended, and prints the table and the first story's call. Every few
// seconds it prints the open stories with the reasons of their waits. It returns an error if a story ended
// unexpectedly.
func (t *timeline) awaitStories(ctx context.Context, stories []*story) error {
	ended := make([]ledger.Delivery, len(stories))
	reported := time.Now()
	for !t.readEnded(ctx, stories, ended) {
		if time.Since(reported) >= reportInterval {
			t.printOpen(ctx, stories)
			reported = time.Now()
		}
		switch err := loop.Pause(ctx, 200*time.Millisecond); {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			return fmt.Errorf("the stories did not end within %s", storiesTimeout)
		}
	}
	wrong := 0
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\n\tstory\tended\tattempts\tfile\ttook\tas expected")
	for i, s := range stories {
		d, mark := ended[i], "yes"
		if d.Status != s.status || d.Reason != s.reason || d.Attempts != s.attempts {
			wrong++
			mark = fmt.Sprintf("no: expected %s %s after %d", s.status, s.reason, s.attempts)
		}
		end := strings.TrimSpace(string(d.Status) + " " + string(d.Reason))
		if s.isRetracted() {
			end += ", retracted"
		}
		fmt.Fprintf(w, "[%d]\t%s\t%s\t%d\t%s\t%s\t%s\n", i+1, s.title, end,
			d.Attempts,
			strings.TrimSpace(d.FileVerification+" "+d.FileSource),
			d.FinishedAt.Sub(d.CreatedAt).Round(time.Millisecond), mark)
	}
	_ = w.Flush()
	t.printLine(b.String())
	t.printReceived(ended)
	if wrong > 0 {
		return fmt.Errorf("%d of %d stories did not end as expected", wrong, len(stories))
	}
	return nil
}

// reportInterval is the time between two lines of awaitStories about the open stories.
const reportInterval = 4 * time.Second

// printOpen prints a line for each story that has not ended.
func (t *timeline) printOpen(ctx context.Context, stories []*story) {
	for i := range stories {
		if d, err := t.readStory(ctx, t.ids, i+1); err == nil && !d.Status.Final() {
			t.printStep(i+1, "still", describeOpen(d, time.Now()))
		}
	}
}

// describeOpen returns the status of a delivery and when its next attempt begins.
func describeOpen(d ledger.Delivery, now time.Time) string {
	text := strings.TrimSpace(fmt.Sprintf("%s %s", d.Status, d.Reason))
	if d.Status == outcome.Waiting && d.NextAttemptAt != nil && d.Reason != outcome.BehindEarlier {
		text += fmt.Sprintf(", again in %s", d.NextAttemptAt.Sub(now).Round(100*time.Millisecond))
	}
	return text
}

// printReceived prints the arguments that the agent of the first delivered story received.
func (t *timeline) printReceived(ended []ledger.Delivery) {
	for i, d := range ended {
		var b bytes.Buffer
		if d.Status == outcome.Delivered && len(d.History) > 0 &&
			json.Indent(&b, d.History[len(d.History)-1].Arguments, "  ", "  ") == nil {
			t.printLine(fmt.Sprintf("What the agent of story %d received, as arguments of %s:\n  %s\n",
				i+1, d.ToolName, b.String()))
			return
		}
	}
}

func (t *timeline) readEnded(ctx context.Context, stories []*story, ended []ledger.Delivery) bool {
	for i := range stories {
		d, err := t.readStory(ctx, t.ids, i+1)
		if err != nil || !d.Status.Final() {
			return false
		}
		if stories[i].isRetracted() {
			if r, err := t.readStory(ctx, t.retractions, i+1); err != nil || r.Status != outcome.Delivered {
				return false
			}
		}
		ended[i] = d
	}
	return true
}

// readStory reads the delivery of a story: that of its feedback (ids), or the one that retracts it (retractions).
// Without one, it returns ledger.ErrNotFound.
func (t *timeline) readStory(ctx context.Context, of map[int]uuid.UUID, number int) (ledger.Delivery, error) {
	t.mu.Lock()
	id, st := of[number], t.worker.Store
	t.mu.Unlock()
	return st.Delivery(ctx, id)
}

// awaitDelivery waits until the worker has accepted the feedback of a transaction, and returns the delivery's id. If
// status is not empty, it also waits until the delivery has the status.
func (t *timeline) awaitDelivery(ctx context.Context, tx common.Hash, status outcome.Status) (uuid.UUID, error) {
	t.mu.Lock()
	worker := t.worker
	t.mu.Unlock()
	for {
		page, err := worker.Operator.ListDeliveries(ctx, operator.Selection{Transaction: tx.Hex()}, 0, 1)
		if err == nil && len(page.Deliveries) > 0 {
			if d := page.Deliveries[0]; status == "" || d.Status == status {
				return d.ID, nil
			}
		}
		if err := loop.Pause(ctx, 100*time.Millisecond); err != nil {
			return uuid.Nil, fmt.Errorf("the worker did not read it off the chain, or its delivery is not %s: %w",
				status, err)
		}
	}
}

// logger returns a logger that prints the start messages of services and all warnings. The time line prints deliveries.
func (t *timeline) logger() *slog.Logger { return slog.New(&quiet{t: t}) }

type quiet struct {
	t     *timeline
	attrs []slog.Attr
}

func (h *quiet) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h *quiet) Handle(_ context.Context, r slog.Record) error {
	name, rest, service := strings.Cut(r.Message, ": ")
	if r.Level < slog.LevelWarn && !service {
		return nil
	}
	if r.Level >= slog.LevelWarn {
		name, rest = "warning", r.Message
	}
	add := func(a slog.Attr) bool { rest += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true }
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.t.printFact(name, text.Printable(rest))
	return nil
}

func (h *quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quiet{t: h.t, attrs: append(append([]slog.Attr(nil), h.attrs...), attrs...)}
}

func (h *quiet) WithGroup(string) slog.Handler { return h }
