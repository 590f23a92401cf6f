package trial

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// keepKeyset adds the keyset's text and its key to the secrets.
func (w *canaryWorld) keepKeyset() {
	w.t.Helper()
	w.keep("the keyset", w.keyset)
	raw, err := base64.StdEncoding.DecodeString(w.keyset)
	w.must(err)
	// KeyData.value (field 2) of 34 bytes: AesGcmKey.key_value (field 3) of 32 bytes.
	_, key, ok := bytes.Cut(raw, []byte{0x12, 34, 0x1a, 32})
	if !ok || len(key) < 32 {
		w.t.Fatal("the keyset's key is not where it was: look at Tink's aes_gcm.proto")
	}
	w.keep("the key of the keyset", string(key[:32]))
}

// lookAtProcesses reads command lines, as every user of the machine can with ps.
func (w *canaryWorld) lookAtProcesses() {
	w.t.Helper()
	for _, pid := range w.pids() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil { // otherwise it ended just now
			w.see("ps", fmt.Sprintf("the command line of process %d", pid), bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		}
	}
}

func (w *canaryWorld) pids() (pids []int) {
	w.t.Helper()
	entries, err := os.ReadDir("/proc")
	if errors.Is(err, os.ErrNotExist) {
		w.t.Skip("without /proc there is no ps to look at")
	}
	w.must(err)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// lookAtEnvironments reads the environments of the processes that a worker started. own names the secrets that the
// operator passes to an agent's command.
func (w *canaryWorld) lookAtEnvironments(p *Process, own ...string) {
	w.t.Helper()
	started, err := children(p.PID())
	w.must(err)
	for _, pid := range started {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || len(data) == 0 {
			continue // it ended just now
		}
		w.seen = append(w.seen, sight{"environments", fmt.Sprintf("the environment of process %d, which a worker started", pid), data, own})
	}
}

// page returns one answer of the worker's HTTP server, including its headers.
func (w *canaryWorld) page(path, token string) (status int, body []byte) {
	w.t.Helper()
	address, err := w.worker.Address()
	w.must(err)
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+path, nil)
	w.must(err)
	if token != "" {
		req.SetBasicAuth("operator", token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	w.must(err)
	defer func() { _ = res.Body.Close() }()
	body, err = io.ReadAll(res.Body)
	w.must(err)
	var all bytes.Buffer
	w.must(res.Header.Write(&all))
	all.Write(body)
	group := "pages"
	if path == "/metrics" {
		group = "metrics"
	}
	w.see(group, "GET "+path, all.Bytes())
	return res.StatusCode, body
}

// pages lists paths with data of the web UI. A new page must be linked from one of them, or be added here.
var pages = []string{"/", "/healthz", "/readyz", "/metrics", "/deliveries", "/agents", "/v1/deliveries", "/v1/agents", "/nothing/here", "/monitor", "/monitor/",
	"/monitor/api/queues", "/monitor/api/queue_stats", "/monitor/api/servers", "/monitor/api/scheduler_entries", "/monitor/api/redis_info"}

var laneLists = []string{"active_tasks", "pending_tasks", "scheduled_tasks", "retry_tasks", "archived_tasks", "completed_tasks", "groups"}

var (
	link   = regexp.MustCompile(`(?:href|src|action)="(/[^"#]*)"`)
	taskID = regexp.MustCompile(`"id":"([0-9a-f-]{36}:\d+)"`)
	// value matches what differs between two addresses of a list: a query's values, and ids in the path.
	value = regexp.MustCompile(`=[^&]*|/[^/?]*[0-9][^/?]*`)
)

// alike lists pages of which four are enough: each shows the same of one delivery, of which every delivery's own page shows
// more.
var alike = map[string]bool{"/clients": true, "/deliveries/replay": true, "/monitor/api/queues/first/tasks": true, "/monitor/api/queues/retry/tasks": true}

// lookAtPages requests every page and every answer of the API. It follows the links of pages and the tasks of lists.
func (w *canaryWorld) lookAtPages() {
	w.t.Helper()
	const most = 2000
	todo := slices.Clone(pages)
	for _, lane := range []string{"first", "default", "retry", "bulk", "upkeep"} {
		root := "/monitor/api/queues/" + lane
		todo = append(todo, root)
		for _, list := range laneLists {
			todo = append(todo, root+"/"+list+"?size=100")
		}
	}
	asked, lists := map[string]bool{}, map[string]int{}
	add := func(path string) {
		if page, query, ok := strings.Cut(path, "?"); ok && !asked[path] && strings.HasPrefix(page, "/") && !strings.HasPrefix(page, "/monitor/") {
			// The same list with another filter shows the same rows. Two of each are enough.
			shape := value.ReplaceAllString(page+"?"+query, "")
			if lists[shape]++; lists[shape] > 2 {
				return
			}
		} else if kind := value.ReplaceAllString(page, ""); alike[kind] {
			if lists[kind]++; lists[kind] > 4 {
				return
			}
		}
		if !asked[path] && !slices.Contains(todo, path) && !strings.HasSuffix(path, ".js") && !strings.HasSuffix(path, ".css") {
			todo = append(todo, path)
		}
	}
	tasks := 0
	for len(todo) > 0 && len(asked) < most {
		path := todo[0]
		todo = todo[1:]
		asked[path] = true
		status, body := w.page(path, w.api)
		if status >= 500 {
			w.t.Errorf("GET %s: %d %s", path, status, body)
		}
		if lane, _, ok := strings.Cut(strings.TrimPrefix(path, "/monitor/api/queues/"), "/"); ok && strings.Contains(path, "_tasks") {
			for _, m := range taskID.FindAllSubmatch(body, -1) {
				tasks++
				add("/monitor/api/queues/" + lane + "/tasks/" + string(m[1]))
			}
		} else {
			for _, m := range link.FindAllSubmatch(body, -1) {
				add(string(m[1]))
			}
		}
	}
	if tasks < 5 {
		w.t.Errorf("the web UI listed only %d tasks: its lists are somewhere else now", tasks)
	}
	for _, path := range []string{"/", "/metrics", "/monitor/api/queues"} {
		if status, _ := w.page(path, "a wrong one"); status != http.StatusUnauthorized {
			w.t.Errorf("GET %s with a wrong token: %d", path, status)
		}
	}
}

// lookAtRedis reads every key, as DUMP and as its value.
func (w *canaryWorld) lookAtRedis() {
	w.t.Helper()
	c := w.Redis.Client()
	keys, err := c.Keys(w.ctx, "*").Result()
	w.must(err)
	for _, key := range keys {
		dump, err := c.Dump(w.ctx, key).Result()
		if err != nil {
			continue // it expired just now
		}
		fields, _ := c.HGetAll(w.ctx, key).Result() // a key that is no hash is an error; DUMP may be compressed
		allowed := []string{waitingSecret}
		if strings.HasPrefix(key, "asynq:workers:") {
			// asynq lists the active tasks with their payloads every 5 s, for 10 s. A worker that dies while it accepts
			// a job leaves that list behind.
			allowed = foreignSecrets
		}
		w.seen = append(w.seen, sight{"redis keys", "the key " + key, fmt.Appendf(nil, "%s\n%s\n%q", key, dump, slices.Collect(maps.Values(fields))),
			allowed})
	}
	w.must(c.Save(w.ctx).Err())
	for _, what := range []string{"CLIENT LIST", "INFO everything", "SLOWLOG GET 1000", "ACL LOG"} {
		words := strings.Fields(what)
		args := make([]any, len(words))
		for i, word := range words {
			args[i] = word
		}
		answer, err := c.Do(w.ctx, args...).Result()
		w.must(err)
		w.see("redis", what, fmt.Append(nil, answer))
	}
}

// lookAtTables reads every row of every table that is not a system table, and the planner's statistics of them.
func (w *canaryWorld) lookAtTables() {
	w.t.Helper()
	w.must(w.SQL(w.ctx, func(ctx context.Context, c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "ANALYZE"); err != nil {
			return err
		}
		rows, err := c.Query(ctx, `SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
			UNION ALL SELECT format('%I.%I', schemaname, viewname) FROM pg_views WHERE schemaname NOT IN ('pg_catalog', 'information_schema')`)
		if err != nil {
			return err
		}
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, table := range append(tables, "pg_catalog.pg_stats", "pg_catalog.pg_stat_activity") {
			var text bytes.Buffer
			if _, err := c.PgConn().CopyTo(ctx, &text, "COPY (SELECT * FROM "+table+") TO STDOUT"); err != nil {
				return fmt.Errorf("%s: %w", table, err)
			}
			w.see("tables", "the table "+table, text.Bytes())
		}
		for _, table := range []string{"herald.deliveries", "herald.attempts", "herald.agents", "herald.agent_mcp_tokens", "herald.migrations"} {
			if !slices.Contains(tables, table) {
				return fmt.Errorf("%s is not among the tables that were searched: %v", table, tables)
			}
		}
		return nil
	}))
}

// dumpPostgres runs pg_dump, if this machine has a suitable one.
func (w *canaryWorld) dumpPostgres() {
	w.t.Helper()
	path, err := exec.LookPath("pg_dump")
	if err != nil {
		w.t.Log("no pg_dump here: the tables were read with COPY alone")
		return
	}
	cmd := exec.CommandContext(w.ctx, path, "--dbname="+w.Site.address, "--inserts", "--create")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		w.t.Logf("pg_dump does not fit this server: %s", exit.Stderr)
		return
	}
	w.must(err)
	w.see("pg_dump", "pg_dump", out)
}

// lookAtPostgresFiles stops the server, so that all data is on disk, and reads the tables, the log and everything else
// in its folder.
func (w *canaryWorld) lookAtPostgresFiles() {
	w.t.Helper()
	w.must(w.postgres.Exec(w.ctx, "CHECKPOINT"))
	w.must(w.postgres.Stop(w.ctx))
	w.files("postgres' files", filepath.Join(w.dir, "postgres"))
}

// inspect runs the commands that show data, including a delivery of each status. The pages show those of each reason.
func (w *canaryWorld) inspect(ways []*way) {
	w.t.Helper()
	commands := [][]string{{"config"}, {"config", "--json"}, {"doctor"}, {"migrate", "status"}, {"token", "list"}, {"token", "list", "--json"}, {"keys", "list"},
		{"agent", "list"}, {"agent", "list", "--json"}, {"delivery", "list", "--limit", "500"}, {"delivery", "list", "--limit", "500", "--json"}, {"delivery", "audit"}}
	for _, v := range ways {
		if v.number%6 == 0 || v.agent == nil { // each command is a process, they all do the same, and pages show every agent
			commands = append(commands, []string{"agent", "show", fmt.Sprintf("8453:%d", v.number), "--json"})
		}
	}
	rows, err := w.Rows(w.ctx)
	w.must(err)
	shown := map[string]bool{}
	for id, r := range rows {
		if !shown[r.Status] {
			shown[r.Status] = true
			commands = append(commands, []string{"delivery", "show", id.String(), "--json"})
		}
	}
	for several := range slices.Chunk(commands, 6) {
		var ends []func() string
		for _, args := range several {
			ends = append(ends, w.startCommand("", nil, args...))
		}
		for _, end := range ends {
			end()
		}
	}
	w.misconfigure()
}

// misconfigure makes commands report errors about secret variables.
func (w *canaryWorld) misconfigure() {
	w.t.Helper()
	pw := func(of string) string { return w.secret("the password of "+of, "-") }
	w.runWith("", []string{"DATABASE_URL=postgres://herald:" + pw("a Postgres that is away") + "@127.0.0.1:1/herald", "REDIS_URL=redis://:" + pw("a Redis at no address") + "@host:port/zero"}, "doctor")
	w.runWith("", []string{"DATABASE_URL=postgres://herald:" + pw("a Postgres at no address") + "@host:port/herald?x"}, "doctor", "--json")
	w.runWith("", []string{"DATABASE_URL=host=127.0.0.1 port=1 password=" + pw("a Postgres in keywords") + " sslmode=what", "HERALD_KEYSET=" + w.secret("what is no keyset", "+/"),
		"HERALD_MASTER_KEY=" + w.secret("what is no master key", "+/"), "RPC_URL_8453=" + w.secret("what is no URL", "/")}, "doctor")
	w.runWith("", []string{"HERALD_MASTER_KEY=" + w.secret("another master key", "+/"), "RPC_URL_8453=https://127.0.0.1:1/" + w.secret("the key of a node that is away", "-")}, "doctor", "--json")
}

// probe probes and calls some of the agents with their stored credentials.
func (w *canaryWorld) probe(ways []*way) {
	w.t.Helper()
	for _, v := range ways {
		args := []string{"agent", "probe", fmt.Sprintf("8453:%d", v.number), "--send", "--json"}
		switch {
		case strings.Contains(v.name, "servers file"):
		case v.give != nil && v.number == 1, strings.Contains(v.name, "basic"):
			args = append(args, "--url", v.url) // its chain has no RPC URL
		default:
			continue
		}
		w.run("", args...)
	}
}

// crash sends SIGQUIT, so that the worker writes its stacks to its log as in a crash, and ends.
func (w *canaryWorld) crash() {
	w.t.Helper()
	w.must(w.worker.Signal(syscall.SIGQUIT))
	<-w.worker.Done()
	log, err := os.ReadFile(w.worker.Log())
	w.must(err)
	_, dump, ok := bytes.Cut(log, []byte("SIGQUIT: quit"))
	if !ok || !bytes.Contains(dump, []byte("internal/delivery.(*Executor).")) || bytes.Count(dump, []byte("\ngoroutine ")) < 10 {
		w.t.Errorf("the worker did not die as it was to, in the middle of deliveries: %s", tail(w.worker.Log()))
	}
}

// runFile starts a worker with an embedded queue, which writes run.json.
func (w *canaryWorld) runFile() {
	w.t.Helper()
	data := filepath.Join(w.dir, w.control)
	second, err := w.Worker(WorkerConfig{Name: "second", Env: []string{"REDIS_URL=", "HERALD_QUEUE=embedded", "HERALD_DATA=" + data}})
	w.must(err)
	w.must(second.Ready(w.ctx))
	path := filepath.Join(data, "run.json")
	text, err := os.ReadFile(path)
	w.must(err)
	w.see("run.json", path, text)
	var run struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(text, &run); err != nil || run.PID != second.PID() {
		w.t.Errorf("run.json of process %d: %s", second.PID(), text)
	}
	// A command finds that worker's queue with run.json.
	if out := w.runWith("", []string{"REDIS_URL=", "HERALD_QUEUE=embedded", "HERALD_DATA=" + data}, "doctor"); !strings.Contains(out, "redis") {
		w.t.Errorf("doctor says nothing of Redis: %s", out)
	}
	w.lookAtProcesses()
	w.lookAtEnvironments(second.Process)
	w.must(second.Terminate(w.ctx))
	w.files("run.json", data)
}
