package delivery

import (
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
)

// keepOrder makes the world's store keep the order of each ordering key.
func (w *world) keepOrder() *world {
	w.t.Helper()
	w.store = openStore(w.t, w.dbURL)
	w.store.StrictOrder = true
	w.intake = must(intake.New(intake.Config{Ledger: w.store, Dispatcher: w.dispatcher, Sealer: w.keys,
		Limits: w.limits(), Logger: w.logger()}))
	return w
}

// TestFalseJobsDelayForSeconds: six false jobs with lower indexes, about which the node never answers, delay the true
// seventh of their client for 10 s. Its own check runs during that time.
func TestFalseJobsDelayForSeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t).keepOrder()
	a := newAgent(t)
	agent := w.register(at(a.URL))
	k := w.newWorker()
	k.chains[w.net.ChainID()] = &deaf{Chain: w.chain}
	var last map[string]any
	for index := range 7 {
		*w.client = 0 // the same account
		if last, _ = w.rate(devnet.Feedback{AgentID: agent, Tag1: fmt.Sprint(index)}); index < 6 {
			w.submitAs(thiefs, repositioned(last, map[string]any{"transactionHash": nil, "logIndex": nil, "blockHash": nil, "blockNumber": 1}))
		}
	}
	id := w.accept(last)
	deliverDispatched := func() {
		t.Helper()
		for _, d := range must(records.New(w.store).Deliveries(t.Context(), records.Filter{Statuses: []outcome.Status{outcome.Queued}})) {
			must(k.deliver(heraldtest.Within(t, 20*time.Second), d.ID, d.Dispatch))
		}
	}
	deliverDispatched()
	w.shows(id, outcome.Waiting, outcome.BehindEarlier, 0)
	heraldtest.Equal(t, "calls", len(a.received()), 0)
	storetest.Aging(t, w.dbURL).Advance(11 * time.Second)
	_, _, err := w.store.Due(t.Context(), 10)
	heraldtest.Must(t, err)
	deliverDispatched()
	w.shows(id, outcome.Delivered, "", 1)
	heraldtest.Equal(t, "calls", len(a.received()), 1)
}

// respond appends n responses of a stranger to a client's feedback, each with a file of its own below uri, and returns
// their events as jobs.
func (w *world) respond(agent *big.Int, client common.Address, index uint64, uri string, n int) (jobs []map[string]any) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		receipt := must(w.net.AppendResponse(heraldtest.Within(w.t, 20*time.Second), w.net.Account(1), agent, client, index,
			fmt.Sprint(uri, i), common.Hash{}))
		e := must(erc8004.Decode(*receipt.Logs[0]))
		jobs = append(jobs, asMap(w.t, must(eventlog.Job(e, w.net.ChainID(), w.net.Deployment(), 1770000000,
			job.Limits{}))))
	}
	return jobs
}

// TestResponsesWithSilentFiles: 40 responses of a stranger to an old feedback, whose file's host never answers, at most
// double the latency of the client's next feedbacks with files. In proportion to the fetch timeout, the agent's effort
// budget is that of a real worker. The feedbacks arrive while the responses' files are fetched, and after these have used
// their part of the budget.
func TestResponsesWithSilentFiles(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	w := newWorld(t).keepOrder()
	a := newAgent(t)
	var fetching, most atomic.Int32
	files := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/silent/") {
			most.Store(max(most.Load(), fetching.Add(1)))
			<-r.Context().Done()
			fetching.Add(-1)
			return
		}
		_, _ = rw.Write([]byte(`{}`))
	}))
	t.Cleanup(files.Close)
	k := w.newWorker(func(c *Config) {
		c.Fetcher = must(ipfs.New(ipfs.Config{Guard: guardtest.Loopback(t, nil), Timeout: timeout, Logger: w.logger()}))
	}, admitBy(t, admission.Config{Slots: 16, Efforts: must(effort.New(effort.Config{Size: 4 * timeout, Logger: w.logger()}))}))
	w.serve(k)
	agent := w.register(at(a.URL))
	var client devnet.Account
	deliver := func(n int) (took time.Duration) {
		t.Helper()
		jobs := make([]map[string]any, n)
		for i := range jobs {
			*w.client = 0 // the same account
			jobs[i], client = w.rate(devnet.Feedback{AgentID: agent, URI: fmt.Sprintf("%s/%d", files.URL, i)})
		}
		began := time.Now()
		for _, answer := range w.submit(jobs...) {
			w.until(answer.ID, outcome.Delivered)
		}
		return time.Since(began)
	}
	deliver(1)
	normal := deliver(4)
	// The time of one silent file would show in every round. Half of it is for a machine that other programs use.
	limit := 2*normal + timeout/2
	quickest := func() time.Duration {
		t.Helper()
		took := deliver(4)
		for range 4 {
			if took > limit {
				took = min(took, deliver(4))
			}
		}
		return took
	}

	responses := w.submit(w.respond(agent, client.Address, 1, files.URL+"/silent/", 40)...)
	heraldtest.AwaitState(t, func() bool { return fetching.Load() == 2 }, func() string {
		d := w.row(responses[0].ID)
		return fmt.Sprintf("the files of %d responses are fetched; the first is %s %s: %s", fetching.Load(), d.Status, d.Reason, d.Error)
	})
	during := quickest()
	heraldtest.Await(t, "the end of the responses' part of the budget", func() bool {
		return w.count(records.Filter{Reason: outcome.OverBudget}) > 0
	})
	after := quickest()
	if during > limit || after > limit || most.Load() > 2 {
		t.Errorf("4 feedbacks took %s, %s while the files of %d responses were fetched, and then %s", normal, during, most.Load(), after)
	}
	for _, r := range responses {
		if d := w.row(r.ID); d.Status.Final() {
			t.Errorf("a response ended: %s %s: %s", d.Status, d.Reason, d.Error)
		}
	}
}
