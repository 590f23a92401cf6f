//go:build chaos

package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/devnet/devnettest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// takeoverTimeout bounds both turns. Each waits for a minute until Postgres is old enough for the reconciler.
const takeoverTimeout = 12 * time.Minute

// These are the agents, by their behaviour while the database is filled. The first ones are always healthy.
const (
	wellAgents   = 10
	guardedAgent = iota + wellAgents - 1 // requires the stored token
	lockedAgent                          // requires a token that is stored only at the takeover
	disabledAgent
	unclearAgent // resets the connection after it has read a call; its policy is onUnknown=hold
	failedAgent  // fails until its deliveries are dead
	failingAgent // fails until its breaker opens
	busyAgent    // asks for a wait that is short enough for Redis
	awayAgent    // asks for a wait that stays in Postgres
	slowAgent    // has more events than an agent may have dispatched
	chainAgent   // has events on a development chain
	allAgents
)

// TestChaosVersionBeforeTakenOver: a worker of an older commit (getBefore) fills a database and a Redis with deliveries
// in every status. A worker of this tree takes them over. Then the older one takes over from the newer one.
func TestChaosVersionBeforeTakenOver(t *testing.T) {
	before, commit := getBefore(t)
	now, _ := shared.Get(t)
	w := newTakeover(newRowOf(t, "N-1 taken over by N, and back", takeoverTimeout, before,
		func() (*Agents, error) { return StartAgents(allAgents) }))
	w.fill(before)
	w.takeOver("N takes over from "+commit[:12], now)
	ordered := w.env
	if !w.inOrder { // docs/running.md describes this step before a return to a version without order
		w.env = append(slices.Clip(w.env), "HERALD_ORDER=off")
	}
	w.fill(now)
	w.env = ordered
	w.takeOver(commit[:12]+" takes over from N", before)
}

// takeover is a row in which the worker of one commit continues with the deliveries of another one.
type takeover struct {
	*row
	doors   map[int]*door
	net     *devnet.Net
	onChain *big.Int // the agent's id on the development chain
	inLine  bool     // both commits know candidates (0007)
	inOrder bool     // both commits keep order (0018)

	turn    int
	made    map[string][]uuid.UUID // deliveries of this turn, by the state in which the worker must leave them
	spooled map[uuid.UUID]bool     // deliveries whose outcome was in Redis when a worker was killed
	kills   []Moment
}

func newTakeover(r *row) *takeover {
	w := &takeover{row: r, doors: map[int]*door{}, net: devnettest.Start(r.T, devnet.Config{Accounts: 3}),
		spooled: map[uuid.UUID]bool{}}
	var err error
	w.onChain, _, err = w.net.Register(w.ctx, w.net.Account(0), "")
	w.must(err)
	w.must(w.SQL(w.ctx, func(ctx context.Context, c *pgx.Conn) error { // the older commit has migrated it
		return c.QueryRow(ctx, `SELECT to_regclass('herald.candidates') IS NOT NULL, to_regclass('herald.deliveries_order') IS NOT NULL`).
			Scan(&w.inLine, &w.inOrder)
	}))
	d := w.net.Deployment()
	w.env = append(w.env, "HERALD_VERIFY_EVENT=receipt", fmt.Sprintf("IDENTITY_REGISTRY_31337=%s", d.Identity),
		fmt.Sprintf("REPUTATION_REGISTRY_31337=%s", d.Reputation))
	for _, i := range []int{guardedAgent, lockedAgent} {
		s := w.agents.servers[i]
		s.down()
		w.doors[i] = &door{next: s.handler}
		s.handler = w.doors[i]
		w.must(s.up())
	}
	return w
}

// door admits requests with the token.
type door struct {
	token atomic.Pointer[string]
	next  http.Handler
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if token := d.token.Load(); token == nil || r.Header.Get("Authorization") != "Bearer "+*token {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "a token is needed", http.StatusUnauthorized)
		return
	}
	d.next.ServeHTTP(w, r)
}

// fill lets workers of one commit leave deliveries in every status, with everything that belongs to them: tasks in
// every list of Redis, spooled outcomes, candidates, and a token.
func (w *takeover) fill(by Programs) {
	w.turn++
	w.programs, w.made = by, map[string][]uuid.UUID{}
	w.agents.BehaveAll(Taking(0))
	w.closeDoors()
	w.command(*w.doors[guardedAgent].token.Load(), "token", "set", agentName(guardedAgent),
		"--origin", w.agents.URL(guardedAgent))
	w.leaveEnds()
	w.leaveWaits()
	w.leaveWork()
}

// closeDoors makes the guarded agents require tokens that are new in this turn.
func (w *takeover) closeDoors() {
	for i, d := range w.doors {
		token := fmt.Sprintf("token-of-agent-%d-in-turn-%d", i, w.turn)
		d.token.Store(&token)
	}
}

// leaveEnds makes deliveries that end, with a worker that tries only twice.
func (w *takeover) leaveEnds() {
	worker := w.startWorker("ends", "HERALD_RETRY_SCHEDULE=1s")
	w.agents.Behave(failedAgent, func(Call) Act { return Act{How: Refuse, Status: 500} })
	w.accept("delivered", w.jobs(20, span(0, wellAgents), nil)+w.jobs(3, []int{guardedAgent}, nil))
	w.accept("dead", w.jobs(2, []int{failedAgent}, nil)) // too few calls in both turns for the agent's breaker to open
	w.accept("rejected", w.jobs(3, []int{0}, func(j map[string]any) {
		j["action"].(map[string]any)["toolName"] = "agent.receiveNothing"
	}))
	w.accept("skipped", w.jobs(3, []int{0}, func(j map[string]any) {
		j["type"], j["reason"] = "FeedbackRevoked", "client"
		delete(j, "value")
		delete(j, "valueDecimals")
	}))
	for status, ids := range w.made {
		w.await(status, ids)
	}
	w.must(worker.Terminate(w.within(30 * time.Second)))
}

// leaveWaits makes waiting and held deliveries, and leaves the worker running for leaveWork.
func (w *takeover) leaveWaits() {
	w.command("", "agent", "disable", agentName(disabledAgent))
	w.command("", "agent", "policy", agentName(unclearAgent), "onUnknown=hold")
	refuse := func(status int, wait time.Duration) Behaviour {
		return func(Call) Act { return Act{How: Refuse, Status: status, RetryAfter: wait} }
	}
	w.agents.Behave(unclearAgent, func(Call) Act { return Act{How: Reset} })
	w.agents.Behave(failingAgent, refuse(500, 0))
	w.agents.Behave(busyAgent, refuse(503, 4*time.Minute))
	w.agents.Behave(awayAgent, refuse(503, time.Hour))
	w.workers = []*Worker{w.startWorker("waits", "RPC_URL_31337=http://127.0.0.1:1")}
	for what, agent := range map[string]int{"held auth_required": lockedAgent, "held agent_disabled": disabledAgent,
		"held held_unknown": unclearAgent, "waiting in Redis": busyAgent, "waiting in Postgres": awayAgent,
		"cancelled": busyAgent} {
		w.accept(what, w.jobs(3, []int{agent}, nil))
	}
	w.accept("failing", w.jobs(12, []int{failingAgent}, nil))
	if w.inLine {
		w.makeContested()
	}
	for what, ids := range w.made {
		status, _, _ := strings.Cut(what, " ")
		switch status {
		case "cancelled", "failing", "contested":
			status = "waiting"
		}
		w.await(status, ids)
	}
	w.command("", append([]string{"delivery", "cancel"}, w.ids("cancelled")...)...)
}

// makeContested enqueues a job that contradicts its event, and then a correct one, while the chain cannot be read.
func (w *takeover) makeContested() {
	feedback := devnet.Feedback{AgentID: w.onChain, Value: big.NewInt(95)}
	for range 2 {
		index, receipt, err := w.net.GiveFeedback(w.ctx, w.net.Account(1), feedback)
		w.must(err)
		mined := func(value string) string {
			return w.jobs(1, []int{chainAgent}, func(j map[string]any) {
				j["chainId"], j["agentId"], j["value"] = w.net.ChainID(), w.onChain.String(), value
				j["clientAddress"], j["feedbackIndex"] = w.net.Account(1).Address.Hex(), index
				j["transactionHash"], j["blockHash"] = receipt.TxHash, receipt.BlockHash
				j["blockNumber"], j["logIndex"] = receipt.BlockNumber.Uint64(), receipt.Logs[0].Index
			})
		}
		w.accept("contested", mined("10"))
		w.contest(mined("95"))
	}
}

// contest enqueues another job of a known event. The answer is a conflict, and the job becomes a candidate.
func (w *takeover) contest(line string) {
	var out bytes.Buffer
	p, err := w.start(program{name: "enqueue", path: w.programs.enqueue(), env: w.environment(),
		stdin: strings.NewReader(line), stdout: &out})
	w.must(err)
	if err := p.Wait(w.within(time.Minute)); err == nil || !strings.HasPrefix(out.String(), "conflict ") {
		w.Fatalf("enqueue answered %q to another job of a known event, want a conflict", out.String())
	}
}

// leaveWork ends the worker in the middle of its work. Outcomes are only in Redis, because Postgres is away. Then there
// are calls in flight, tasks that no worker received, and deliveries above the limit of dispatched ones per agent.
func (w *takeover) leaveWork() {
	w.agents.Behave(slowAgent, Taking(1500*time.Millisecond))
	for i := range wellAgents {
		w.agents.Behave(i, Taking(think))
	}
	w.accept("in line", w.jobs(30, []int{slowAgent}, nil))
	w.accept("work", w.jobs(400, span(0, wellAgents), nil))
	w.underWay(w.agents.Count()+40, 8)
	w.must(w.Postgres.Stop(w.ctx))
	w.must(Until(w.within(20*time.Second), pollSlow, "the calls to end", func() (bool, error) {
		return w.agents.InFlight() == 0, nil
	}))
	w.pass(5 * time.Second) // outcomes that could not be recorded are spooled within moments
	w.must(w.workers[0].Kill())
	w.must(w.Postgres.Start(w.ctx))

	last := w.startWorker("work", "RPC_URL_31337=http://127.0.0.1:1")
	w.underWay(w.agents.Count()+20, 8)
	kill := Moment{From: time.Now()}
	w.must(last.Kill())
	kill.To = time.Now()
	w.kills = append(w.kills, kill)
	for _, id := range w.listSpooled() {
		w.spooled[id] = true
	}
}

func (w *takeover) listSpooled() (ids []uuid.UUID) {
	keys := w.Redis.Client().Scan(w.ctx, 0, keptPrefix+"*", 1000).Iterator()
	for keys.Next(w.ctx) {
		id, err := uuid.Parse(strings.TrimPrefix(keys.Val(), keptPrefix))
		w.must(err)
		ids = append(ids, id)
	}
	w.must(keys.Err())
	return ids
}

// takeOver runs the other commit's commands: it reads the deliveries and does the work of an operator. Then that
// commit's worker continues until every delivery has ended as it must.
func (w *takeover) takeOver(what string, by Programs) {
	w.programs = by
	f := NewFigures("chaos", what)
	w.command("", "migrate")
	w.checkFilled(f)
	w.readFilled()

	w.agents.BehaveAll(Taking(0))
	w.command("", "agent", "enable", agentName(disabledAgent))
	w.command(*w.doors[lockedAgent].token.Load(), "token", "set", agentName(lockedAgent),
		"--origin", w.agents.URL(lockedAgent))
	w.command("", append([]string{"delivery", "replay"},
		w.ids("dead", "cancelled", "held held_unknown", "waiting in Redis", "waiting in Postgres")...)...)
	began := time.Now()
	worker := w.startWorker("takes-over", "RPC_URL_31337="+w.net.URL())
	w.accept("guarded", w.jobs(3, []int{guardedAgent}, nil))
	if err := w.AwaitFinal(w.within(4 * time.Minute)); err != nil {
		w.Error(err)
	}
	f.Add("ended_after", time.Since(began))
	w.checkEnd(f)
	w.must(worker.Terminate(w.within(30 * time.Second)))
	fmt.Println(f)
}

// checkFilled counts the deliveries that the previous worker has left. There must be some of every kind, or the row
// tests nothing.
func (w *takeover) checkFilled(f *Figures) {
	rows, err := w.Rows(w.ctx)
	w.must(err)
	there := map[string]int{"spooled": len(w.listSpooled())}
	for _, row := range rows {
		there[row.Status]++
	}
	w.must(w.SQL(w.ctx, func(ctx context.Context, c *pgx.Conn) error {
		for what, sql := range map[string]string{
			"candidates":    `SELECT count(*) FROM herald.candidates`,
			"tokens":        `SELECT count(*) FROM herald.agent_mcp_tokens`,
			"failed_agents": `SELECT count(*) FROM herald.agents WHERE state = 'failed'`,
			"in_line":       `SELECT count(*) FROM herald.deliveries WHERE status = 'queued' AND handed_at IS NULL`,
		} {
			var n int
			if err := c.QueryRow(ctx, sql).Scan(&n); err != nil {
				return err
			}
			there[what] = n
		}
		return nil
	}))
	for _, lane := range []string{"first", "retry"} {
		archived, err := w.Redis.Client().ZCard(w.ctx, "asynq:{"+lane+"}:archived").Result()
		w.must(err)
		there["archived"] += int(archived)
	}
	for _, what := range []string{"queued", "in_line", "running", "waiting", "held", "delivered", "skipped", "rejected",
		"dead", "cancelled", "candidates", "spooled", "archived", "tokens", "failed_agents"} {
		if what == "candidates" && !w.inLine {
			continue
		}
		f.Add(what, there[what])
		if there[what] == 0 {
			w.Errorf("the worker before has left nothing %s: %v", what, there)
		}
	}
}

// readFilled reads deliveries of every status with the commands of the commit that takes over. No delivery moves during
// that.
func (w *takeover) readFilled() {
	rows, err := w.Rows(w.ctx)
	w.must(err)
	of := map[string][]uuid.UUID{}
	for id, row := range rows {
		of[row.Status] = append(of[row.Status], id)
	}
	for status, ids := range of {
		var list struct{ Deliveries []struct{ ID uuid.UUID } }
		w.must(json.Unmarshal([]byte(w.command("", "delivery", "list", "--json", "--limit=1000", "--status="+status)), &list))
		if len(list.Deliveries) != len(ids) {
			w.Errorf("`delivery list --status=%s` shows %d deliveries, Postgres has %d", status, len(list.Deliveries), len(ids))
		}
		for _, id := range ids[:min(len(ids), 3)] {
			var shown struct {
				ID      uuid.UUID
				Status  string
				Job     json.RawMessage
				History []any
			}
			w.must(json.Unmarshal([]byte(w.command("", "delivery", "show", "--json", id.String())), &shown))
			if shown.ID != id || shown.Status != status || shown.Job == nil || len(shown.History) < rows[id].Attempts {
				w.Errorf("`delivery show` of a %s delivery shows %+v, want %d attempts", status, shown, rows[id].Attempts)
			}
		}
	}
	for _, args := range [][]string{{"agent", "list"}, {"agent", "show", agentName(failingAgent)}, {"token", "list"},
		{"delivery", "audit"}} {
		if out := w.command("", append(args, "--json")...); !json.Valid([]byte(out)) {
			w.Errorf("worker %s printed %q", strings.Join(args, " "), out)
		}
	}
}

// checkEnd checks that every delivery ended as it must, and that no delivery with a known outcome was called again.
func (w *takeover) checkEnd(f *Figures) {
	rows, err := w.Rows(w.ctx)
	w.must(err)
	calls, err := w.agents.Calls()
	w.must(err)
	lost := Lost(w.accepted, rows, calls)
	if len(lost) > 0 || len(rows) != len(w.accepted) {
		w.Errorf("of %d deliveries %d are lost, and Postgres has %d: %v", len(w.accepted), len(lost), len(rows), CountStatus(rows))
	}
	for what, ids := range w.made {
		want := "delivered"
		if what == "rejected" || what == "skipped" {
			want = what
		}
		for _, id := range ids {
			if rows[id].Status != want {
				w.Errorf("a delivery that was %s ended %s %s, want %s", what, rows[id].Status, rows[id].Reason, want)
			}
		}
	}
	w.checkContested()

	again, spooledAgain := 0, 0
	for _, p := range calls.Repeats() {
		switch {
		case !p.Earlier.Answered || !p.Later.Begun.After(p.Earlier.Ended):
		case w.spooled[p.Earlier.Delivery]:
			spooledAgain++
		// A worker that is killed right after an answer loses it.
		case !slices.ContainsFunc(w.kills, func(m Moment) bool { return m.Touches(p.Earlier, 500*time.Millisecond) }):
			again++
		}
	}
	f.Add("deliveries", len(rows)).Add("lost", len(lost)).Add("calls", len(calls)).Add("duplicates", len(calls.Repeats())).
		Add("known_again", again).Add("spooled_called_again", spooledAgain).Add("spooled_left", len(w.listSpooled())).
		Add("overlaps", calls.Overlaps())
	if again+spooledAgain > 0 {
		w.Errorf("%d calls were made again whose answer was known, %d whose outcome Redis had", again, spooledAgain)
	}
}

// checkContested: the job that the chain confirms has replaced the first one.
func (w *takeover) checkContested() {
	w.must(w.SQL(w.ctx, func(ctx context.Context, c *pgx.Conn) error {
		for _, id := range w.made["contested"] {
			var value string
			if err := c.QueryRow(ctx, `SELECT job ->> 'value' FROM herald.deliveries WHERE id = $1`, id).Scan(&value); err != nil {
				return err
			}
			if value != "95" {
				w.Errorf("contested delivery %s was made with the value %q, want the chain's 95", id, value)
			}
		}
		return nil
	}))
}

// startWorker starts a worker of the turn's programs and waits until it is ready.
func (w *takeover) startWorker(name string, env ...string) *Worker {
	worker, err := w.Worker(WorkerConfig{Name: fmt.Sprintf("%s-%d", name, w.turn), Concurrency: 16, Env: env})
	w.must(err)
	w.must(worker.Ready(w.within(time.Minute)))
	return worker
}

// command runs one of the worker's commands, which must exit with status 0.
func (w *takeover) command(stdin string, args ...string) string {
	w.Helper()
	out, err := w.RunWith(w.ctx, strings.NewReader(stdin), args...)
	w.must(err)
	return out
}

// jobs returns n lines for the enqueue program, rotating through the agents. change, if not nil, changes each job.
func (w *takeover) jobs(n int, agents []int, change func(map[string]any)) string {
	var lines strings.Builder
	for line := range strings.Lines(w.lines(n, agents...)) {
		if change != nil {
			var j map[string]any
			w.must(json.Unmarshal([]byte(line), &j))
			change(j)
			changed, err := json.Marshal(j)
			w.must(err)
			line = string(changed) + "\n"
		}
		lines.WriteString(line)
	}
	return lines.String()
}

// accept enqueues jobs, all of which must be accepted, and records their purpose.
func (w *takeover) accept(what, lines string) {
	w.Helper()
	accepted, known, err := w.Enqueue(w.within(time.Minute), strings.NewReader(lines))
	w.must(err)
	if len(known) > 0 || len(accepted) != strings.Count(lines, "\n") {
		w.Fatalf("of %d jobs %d were accepted and %d known", strings.Count(lines, "\n"), len(accepted), len(known))
	}
	w.remember(accepted)
	w.made[what] = append(w.made[what], accepted...)
}

// ids returns the ids of the deliveries with these purposes, as arguments of commands.
func (w *takeover) ids(what ...string) (ids []string) {
	for _, name := range what {
		for _, id := range w.made[name] {
			ids = append(ids, id.String())
		}
	}
	return ids
}

// await waits until deliveries have a status.
func (w *takeover) await(status string, ids []uuid.UUID) {
	w.Helper()
	w.must(Until(w.within(90*time.Second), pollSlow, fmt.Sprintf("%d deliveries to be %s", len(ids), status), func() (bool, error) {
		rows, err := w.Rows(w.ctx)
		if err != nil {
			return false, err
		}
		maps.DeleteFunc(rows, func(id uuid.UUID, row Row) bool { return row.Status == status || !slices.Contains(ids, id) })
		if len(rows) > 0 {
			return false, fmt.Errorf("%v", CountStatus(rows))
		}
		return true, nil
	}))
}

func agentName(agent int) string { return fmt.Sprintf("8453:%d", agent+1) }

// getBefore returns the programs of an older commit, and names it (make chaos BEFORE=…).
func getBefore(t *testing.T) (before Programs, commit string) {
	t.Helper()
	before, commit, err := shared.GetBefore(t)
	if errors.Is(err, ErrNoHistory) && os.Getenv("HERALD_TRIAL_NO_HISTORY") == "1" {
		fmt.Println("chaos: N-1 beside N: not run, there is no git history (HERALD_TRIAL_NO_HISTORY=1)")
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("the programs of an older commit cannot be built: %v (BEFORE= names another commit, "+
			"HERALD_TRIAL_NO_HISTORY=1 leaves this row out)", err)
	}
	return before, commit
}
