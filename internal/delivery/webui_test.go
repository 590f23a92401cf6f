package delivery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/webui"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// shownTask is a task as the web UI shows it.
type shownTask struct {
	ID    string    `json:"id"`
	Error string    `json:"error_message"`
	Next  time.Time `json:"next_process_at"`
}

// shown returns the tasks that the web UI lists for a state in the lanes of deliveries.
func (w *world) shown(state string) (all []shownTask) {
	w.t.Helper()
	ui := webui.New(w.queue, "/monitor", intake.MaskJob)
	defer ui.Close()
	for _, lane := range []queue.Lane{queue.First, queue.Retry, queue.Bulk} {
		for page := 1; page > 0; page++ {
			r := httptest.NewRecorder()
			ui.ServeHTTP(r, httptest.NewRequest(http.MethodGet,
				fmt.Sprintf("/monitor/api/queues/%s/%s_tasks?size=100&page=%d", lane, state, page), nil))
			var list struct {
				Tasks []shownTask `json:"tasks"`
			}
			if err := json.Unmarshal(r.Body.Bytes(), &list); err != nil {
				w.t.Fatalf("%s: %v", r.Body, err)
			}
			if all = append(all, list.Tasks...); len(list.Tasks) < 100 {
				page = -1
			}
		}
	}
	return all
}

// TestWebUIAgreesWithPostgres: the web UI's counts match Postgres, and each task that is not delivered shows the
// reason.
func TestWebUIAgreesWithPostgres(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	well, sick := newAgent(t), newAgent(t, status(503, "Retry-After", "200"))
	naysayer := newAgent(t, answers(saysNo))
	k := w.newWorker(limitOrigins(newLimiter(t, ratelimit.Config{Rate: 1e6, OpenFor: 4 * time.Minute}), nil))
	delete(k.chains, w.net.ChainID()) // so that no event is looked up, and jobs without an endpoint are held
	w.serve(k)

	of, _ := w.rate(devnet.Feedback{AgentID: w.register(nil)})
	index := 0
	submit := func(n int, action map[string]any) (ids []uuid.UUID) {
		t.Helper()
		for range n {
			index++
			j := repositioned(of, map[string]any{"feedbackIndex": index, "transactionHash": fmt.Sprintf("0x%064x", index)})
			if j["action"] = action; action == nil {
				delete(j, "action")
			}
			ids = append(ids, w.accept(j))
		}
		return ids
	}
	want := map[outcome.Status]int{outcome.Delivered: 40, outcome.Waiting: 50, outcome.Rejected: 6, outcome.Held: 4}
	submit(want[outcome.Delivered], own(well.URL, nil))
	waits := submit(want[outcome.Waiting], own(sick.URL, nil))
	submit(want[outcome.Rejected], own(naysayer.URL, nil))
	held := submit(want[outcome.Held], nil)

	rows := func() []ledger.Delivery {
		return must(records.New(w.store).Deliveries(heraldtest.Within(t, 10*time.Second), records.Filter{Limit: index}))
	}
	reconciler := w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Late, c.Chains = time.Minute, nil })
	var got map[outcome.Status]int
	agree := func() bool {
		w.reconcile(reconciler) // dispatches deliveries that a breaker keeps in the backlog
		got = map[outcome.Status]int{}
		for _, d := range rows() {
			got[d.Status]++
		}
		lanes := must(w.queue.Lanes(t.Context()))
		count := func(state string) (n int) {
			for _, states := range lanes {
				n += states[state]
			}
			return n
		}
		return fmt.Sprint(got) == fmt.Sprint(want) && count("completed") == want[outcome.Delivered] && count("retry") == want[outcome.Waiting] &&
			count("archived") == want[outcome.Rejected]+want[outcome.Held] && count("active")+count("pending")+count("scheduled") == 0
	}
	heraldtest.AwaitState(t, agree, func() string { return fmt.Sprintf("%v; %v", got, must(w.queue.Lanes(t.Context()))) })

	byTask := map[string]ledger.Delivery{}
	for _, d := range rows() {
		byTask[queue.Task{DeliveryID: d.ID, N: d.Dispatch}.ID()] = d
	}
	reasons := map[string]int{}
	for _, x := range w.shown("retry") {
		d := byTask[x.ID]
		reasons[string(d.Reason)]++
		if d.Status != outcome.Waiting || x.Error != fmt.Sprintf("%s: %s", d.Reason, d.Error) ||
			x.Next.Before(*d.NextAttemptAt) || x.Next.Sub(*d.NextAttemptAt) > 3*time.Second {
			t.Errorf("%s %s until %s is shown as %+v", d.Status, d.Reason, d.NextAttemptAt, x)
		}
	}
	if len(reasons) != 2 || reasons["server_error"]+reasons["breaker_open"] != want[outcome.Waiting] {
		t.Errorf("they wait for %v", reasons)
	}
	for _, x := range w.shown("archived") {
		if d := byTask[x.ID]; !strings.HasPrefix(x.Error, fmt.Sprintf("%s %s: %s", d.Status, d.Reason, d.Error)) {
			t.Errorf("%s %s is shown as %+v", d.Status, d.Reason, x)
		}
	}

	// Replayed and released deliveries are no longer shown in their old state, whether or not they have a new task yet.
	moved, _, tasks, err := w.store.Replay(heraldtest.Within(t, 10*time.Second), append(waits[:20:20], held...), false)
	if err != nil || moved != 24 {
		t.Fatal(moved, err)
	}
	w.dispatcher.Dispatch(t.Context(), tasks)
	if n := len(w.shown("archived")); n > want[outcome.Rejected]+want[outcome.Held] {
		t.Errorf("%d are archived", n)
	}
	heraldtest.AwaitState(t, agree, func() string { return fmt.Sprintf("%v; %v", got, must(w.queue.Lanes(t.Context()))) })
}

// TestKilledBeforeTaskIsRetried: a worker is killed after Postgres has stored a wait and before asynq knows it. asynq
// then recovers the task at its own time. If it is early, the task waits for the remaining time, with its reason. If it
// is late, it is delivered.
func TestKilledBeforeTaskIsRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var well atomic.Bool
	a := newAgent(t, onAny(func(_ string, rw http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		if well.Load() {
			return false
		}
		rw.Header().Set("Retry-After", "100")
		http.Error(rw, "no", http.StatusServiceUnavailable)
		return true
	}))
	due, early := w.dispatchTo(a.URL), w.dispatchTo(a.URL)
	k := w.newWorker()
	rdb := w.queue.Client(10 * time.Second)
	t.Cleanup(func() { _ = rdb.Close() })
	for range 2 { // as asynq leaves the tasks of a dead server
		id := must(rdb.RPopLPush(t.Context(), "asynq:{first}:pending", "asynq:{first}:active").Result())
		_ = must(rdb.HSet(t.Context(), "asynq:{first}:t:"+id, "state", "active").Result())
		_ = must(rdb.ZAdd(t.Context(), "asynq:{first}:lease", redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix()), Member: id}).Result())
	}
	k.mustDeliver(due, 1, "waiting server_error")
	k.mustDeliver(early, 1, "waiting server_error")
	w.exec(`UPDATE herald.work SET next_attempt_at = now() - interval '1 minute' WHERE id = $1`, due)
	w.reconcile(w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Late = time.Second })) // it is active in Redis
	heraldtest.Equal(t, "dispatches", w.row(due).Dispatch, 1)
	well.Store(true)

	w.serve(k) // its recoverer runs at once
	heraldtest.Equal(t, "dispatches", w.ends(due, outcome.Delivered, "", 2).Dispatch, 1)
	var shown []shownTask
	heraldtest.AwaitState(t, func() bool {
		shown = w.shown("retry")
		return len(shown) == 1 && strings.HasPrefix(shown[0].Error, "server_error: ")
	}, func() string { return fmt.Sprintf("%+v wait", shown) })
	d := w.shows(early, outcome.Waiting, outcome.ServerError, 1)
	if x := shown[0]; x.ID != (queue.Task{DeliveryID: early, N: 1}).ID() || x.Next.Before(*d.NextAttemptAt) ||
		x.Next.Sub(*d.NextAttemptAt) > 3*time.Second {
		t.Errorf("%+v until %s is shown as %+v", d, d.NextAttemptAt, x)
	}
	heraldtest.Equal(t, "dispatches", d.Dispatch, 1)
}
