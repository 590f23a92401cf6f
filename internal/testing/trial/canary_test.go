package trial

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/trial/canary"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
)

// TestCanary uses a credential of every kind in a complete Herald, with agents that repeat every credential they
// receive. Then it searches for all of these credentials, and for Herald's own secrets, in every place that is visible
// to someone: logs of all levels, errors, metrics, pages, output of commands, ps, environments of child processes,
// Redis and its files, Postgres, its dump and its files, run.json, and the stack dump of a worker that crashes during
// calls. Each search must also find a word that is planted there. It is not parallel: it starts many processes, so the
// package's other tests would slow it down.
func TestCanary(t *testing.T) {
	w := newCanaryWorld(t)
	ways, granting := w.ways()
	w.serve()
	w.introduce(ways)
	w.mishap(ways)
	w.renew(granting)
	w.refuse(ways)
	w.refuseCommands(granting)

	w.lookAtProcesses()
	w.lookAtEnvironments(w.worker.Process, ownSecrets...)
	w.inspect(ways)
	w.hang(ways)
	w.lookAtPages()
	w.crash()

	w.lookAtRedis()
	w.lookAtTables()
	w.dumpPostgres()
	for _, v := range ways {
		if v.agent != nil {
			v.agent.state.Store("")
		}
	}
	w.runFile()
	w.lookAtPostgresFiles()
	// A job that another program puts into Redis is in clear text until Herald accepts it, so it remains in the
	// append-only file.
	w.files("redis' files", filepath.Join(w.Site.dir, "redis"), foreignSecrets...)
	w.files("logs", w.Site.Logs)
	w.files("logs", filepath.Join(w.dir, "postgres.log"))
	w.keepIssued(granting)
	w.search("logs", "metrics", "pages", "commands", "ps", "environments", "redis keys", "redis' files", "tables", "postgres' files", "run.json")
}

var (
	ownSecrets     = []string{"a command's variable", "a command's other variable"}
	foreignSecrets = []string{"the token of a job in Redis", "the token of a refused job in Redis", waitingSecret}
)

// waitingSecret is in a job that another program scheduled in Redis. There it is in clear text, but no page shows it.
const waitingSecret = "the token of a job that waits in Redis"

// way is one kind of credential: an agent that requires it and how the agent is called.
type way struct {
	name   string
	number int     // of the agent, on chain 8453
	agent  *keeper // nil: a command
	url    string
	// line returns a job. If tool is empty, the job uses the default tool.
	line func(serial int, happens, tool string) string
	// give stores a new credential, and makes the agent require it. nil: the credential exists from the beginning.
	give func()
	// submit enqueues jobs. nil: the enqueue program does.
	submit func(lines []string)
	jobs   int // number of jobs so far
}

// ways returns all kinds of credentials.
func (w *canaryWorld) ways() (ways []*way, issuers []*granting) {
	w.t.Helper()
	add := func(name string) *way {
		v := &way{name: name, number: len(ways) + 1}
		v.agent = w.newKeeper(name)
		v.url = v.agent.URL
		v.line = w.lineOfStored(v)
		ways = append(ways, v)
		return v
	}
	w.storedTokens(add)
	w.jobsOwn(add)
	issuers = w.oauth(add)
	stored := slices.DeleteFunc(slices.Clone(ways), func(v *way) bool { return v.give == nil })
	w.serversFile(add, stored)
	return ways, issuers
}

// lineOfStored returns jobs for an agent whose credential is stored. A job without a mishap names the endpoint. The servers
// file names it for the others, because after a failure Herald calls an endpoint that a job names once at a time.
func (w *canaryWorld) lineOfStored(v *way) func(serial int, happens, tool string) string {
	return func(serial int, happens, tool string) string {
		endpoint := ""
		if happens == "answer" {
			endpoint = fmt.Sprintf(`{"transport":"http","url":%q}`, v.url)
		}
		return w.job(v.number, serial, happens, tool, endpoint)
	}
}

// storedTokens adds the credentials that `worker token set` accepts.
func (w *canaryWorld) storedTokens(add func(string) *way) {
	bearer, header, file := add("a bearer token"), add("a key in a header"), add("a token in a file")
	set := func(v *way, stdin string, flags ...string) {
		args := append([]string{"token", "set", fmt.Sprintf("8453:%d", v.number), "--origin", v.agent.URL}, flags...)
		if out := w.run(stdin, args...); !strings.Contains(out, "is stored for "+v.agent.URL) {
			w.t.Errorf("%s: %s", v.name, out)
		}
	}
	bearer.give = func() {
		token := w.secret("a bearer token", "/+=-")
		bearer.agent.want("Bearer " + token)
		set(bearer, token+"\n")
	}
	header.give = func() {
		token := w.secret("a key in a header", `"\<&'>/%=`)
		header.agent.want(token)
		set(header, token, "--header", "X-Api-Key", "--expires", "90d")
	}
	file.give = func() {
		token := w.secret("a token in a file", "~/=")
		file.agent.want("Bearer " + token)
		set(file, "", "--file", w.file("token", token+"\n"))
	}
}

// jobsOwn adds the credentials in jobs: in Herald's form, in the old backend's, and in a task that another program put
// into Redis.
func (w *canaryWorld) jobsOwn(add func(string) *way) {
	own := add("a job's own headers")
	token, tenant := w.secret("a job's token", "/+="), w.secret("a job's other header", `"<&%`)
	own.agent.want("Bearer "+token, tenant)
	own.line = func(serial int, happens, tool string) string {
		return w.job(own.number, serial, happens, tool, fmt.Sprintf(`{"transport":"http","url":%q,"headers":{"authorization":%q,"X-Tenant":%s}}`,
			own.agent.origin(serial), "Bearer "+token, inJSON(tenant)[1]))
	}

	stream := add("a job's header over HTTP+SSE")
	key := w.secret("a job's header over HTTP+SSE", "/+&%")
	stream.agent.want(key)
	stream.line = func(serial int, happens, tool string) string {
		// An answer that is not JSON does not arrive over a stream.
		return w.job(stream.number, serial, happens, tool, fmt.Sprintf(
			`{"transport":"sse","url":%q,"headers":{"X-Api-Key":%q}},"timeoutMs":1000`, stream.agent.origin(serial)+"/sse", key))
	}

	old := add("the old backend's auth_token")
	oldToken := w.secret("the old backend's auth_token", "/==")
	old.agent.want("Bearer " + oldToken)
	old.line = func(serial int, happens, _ string) string {
		return fmt.Sprintf(`{"id":"job-%[1]d","trigger_id":"7","action_type":"mcp","event_data":{"event_type":"NewFeedback","chain_id":8453,"agent_id":"%[2]d",`+
			`"client_address":"0x%040[1]x","feedback_index":1,"score":95,"tag1":%[3]q},"config":{"server_url":%[4]q,"auth_token":%[5]q,"include_file_content":false}}`+"\n",
			serial, old.number, happens, old.agent.origin(serial), oldToken)
	}

	foreign := add("a job in Redis")
	foreignToken := w.secret(foreignSecrets[0], "/+")
	foreign.agent.want("Bearer " + foreignToken)
	foreign.line = func(serial int, happens, tool string) string {
		return w.job(foreign.number, serial, happens, tool, fmt.Sprintf(`{"transport":"http","url":%q,"headers":{"Authorization":%q}}`,
			foreign.agent.origin(serial), "Bearer "+foreignToken))
	}
	foreign.submit = func(lines []string) {
		for _, line := range lines {
			w.addTask(line)
		}
	}
}

// addTask puts a job into Redis, as another program does.
func (w *canaryWorld) addTask(line string, options ...asynq.Option) {
	w.t.Helper()
	o := w.Redis.Client().Options()
	c := asynq.NewClient(asynq.RedisClientOpt{Network: o.Network, Addr: o.Addr, Password: o.Password})
	defer func() { _ = c.Close() }()
	_, err := c.EnqueueContext(w.ctx, asynq.NewTask("NewFeedback", []byte(line)), options...)
	w.must(err)
}

// serversFile writes the operator's servers file, which names the endpoints of stored too. Its secrets are in the worker's
// environment or in the file itself.
func (w *canaryWorld) serversFile(add func(string) *way, stored []*way) {
	w.t.Helper()
	listed, address, command := add("the servers file"), add("an address of the servers file"), add("a command of the servers file")
	variable := func(name, secret string) { w.Site.Env = append(w.Site.Env, name+"="+secret) }

	token, inFile := w.secret("a token that the servers file names", "/+="), w.secret("a header in the servers file", `"&<`)
	variable("LISTED_TOKEN", token)
	listed.agent.want("Bearer "+token, inFile)

	path, key := w.secret("a part of an address", "_"), w.secret("a query of an address", "-")
	variable("PATH_KEY", path)
	variable("QUERY_KEY", key)
	address.agent.want(path, key)

	variable("COMMAND_KEY", w.secret(ownSecrets[0], `/"=`))
	variable("COMMAND_KEY_TOO", w.secret(ownSecrets[1], "+/"))
	command.agent = nil
	self, err := os.Executable()
	w.must(err)

	var entries strings.Builder
	for _, v := range stored {
		fmt.Fprintf(&entries, "\"8453:%d\": {\"url\": %q},\n", v.number, v.url)
	}
	file := fmt.Sprintf(`{"servers": {%s
		"8453:%d": {"url": %q, "auth": {"type": "bearer", "token": "${LISTED_TOKEN}"}, "headers": {"X-Written": %s}},
		"8453:%d": {"url": %q},
		"8453:%d": {"command": %q, "args": ["-test.run=^TestCanaryAgent$", %q], "env": {%q: "1", "CONTROL": %q, "AGENT_KEY": "${COMMAND_KEY}", "AGENT_KEY_TOO": "${COMMAND_KEY_TOO}"}}
	}}`, entries.String(), listed.number, listed.agent.URL, inJSON(inFile)[1], address.number, address.agent.URL+"/${PATH_KEY}/mcp?key=${QUERY_KEY}",
		command.number, self, w.control, stdioVariable, w.control)
	w.servers = file
	variable("HERALD_SERVERS_FILE", w.file(serversName, file))
	for _, v := range []*way{listed, address, command} {
		v.line = func(serial int, happens, tool string) string { return w.job(v.number, serial, happens, tool, "") }
	}
}

const serversName = "servers.json"

// breakServersFile makes typical mistakes of an operator, with a secret in each.
func (w *canaryWorld) breakServersFile() {
	w.t.Helper()
	before, after, ok := strings.Cut(w.servers, `"headers": {"X-Written": `)
	header, after, closed := strings.Cut(after, "}")
	if !ok || !closed {
		w.t.Fatal("the servers file is not what it was")
	}
	w.file(serversName, before+`"token": `+header+`, "tools": [`+header+`, {}], "headers": {"X-Written": [`+header+`], "X Written": `+header+`, "Host": `+header+"}"+after)
}

// serve starts the worker.
func (w *canaryWorld) serve() {
	w.t.Helper()
	w.api = w.secret("HERALD_API_TOKEN", "-")
	node := httptest.NewServer(nosyNode())
	w.t.Cleanup(func() { node.CloseClientConnections(); node.Close() })
	key, query := w.secret("the key in an RPC URL", "-"), w.secret("the query of an RPC URL", "_")
	w.Site.Env = append(w.Site.Env, "HERALD_LOG_LEVEL=debug", "HERALD_REDIS_INTAKE=on", "HERALD_BINDING=warn", "HERALD_API_TOKEN="+w.api, "HERALD_TOOLS="+w.control, "HERALD_ENDPOINT_INFLIGHT=32", "HERALD_CALL_TIMEOUT=4s", "GOTRACEBACK=system",
		"HERALD_RETRY_SCHEDULE=100ms,100ms", fmt.Sprintf("RPC_URL_31337=%s/v3/%s?key=%s", node.URL, key, query),
		fmt.Sprintf("IDENTITY_REGISTRY_31337=0x%040x", 2), fmt.Sprintf("REPUTATION_REGISTRY_31337=0x%040x", 3))
	// Alerts go to a receiver that is away, so that every attempt fails and is logged.
	signs := base64.StdEncoding.EncodeToString([]byte(canary.Token("-")))
	w.keep("HERALD_ALERT_SECRET", signs)
	w.Site.Env = append(w.Site.Env, "HERALD_ALERT_URL=http://127.0.0.1:1/"+w.secret("the path of HERALD_ALERT_URL", "-")+"?k="+
		w.secret("the query of HERALD_ALERT_URL", "_"), "HERALD_ALERT_SECRET=whsec_"+signs)
	var err error
	w.worker, err = w.Worker(WorkerConfig{Name: "worker", Concurrency: 96}) // agents at endpoints of jobs stay newcomers, which share slots
	w.must(err)
	w.must(w.worker.Ready(w.ctx))
}

// nosyNode is a chain's node that knows only its chain id. It repeats its request URL in its answers, or breaks the
// connection.
func nosyNode() http.HandlerFunc {
	var asked atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		about := "no such project: " + r.URL.String()
		batch := json.NewDecoder(r.Body).Decode(&req) != nil
		w.Header().Set("Content-Type", "application/json")
		if req.Method == "eth_chainId" {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":"0x7a69"}`, req.ID)
			return
		}
		switch n := asked.Add(1); {
		case batch || n%3 == 1:
			http.Error(w, about, http.StatusForbidden)
		case n%3 == 2:
			reset(w)
		default:
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":%q}}`, req.ID, about)
		}
	}
}

// put adds a job for each of the happenings. flush enqueues them.
func (w *canaryWorld) put(v *way, tool string, happenings ...string) {
	w.t.Helper()
	var lines []string
	for _, happens := range happenings {
		v.jobs++
		lines = append(lines, v.line(1000*v.number+v.jobs, happens, tool))
	}
	if v.submit != nil {
		v.submit(lines)
		return
	}
	w.lines = append(w.lines, lines...)
}

// flush enqueues the jobs that put added, with one run of the enqueue program.
func (w *canaryWorld) flush() {
	w.t.Helper()
	if len(w.lines) > 0 {
		w.enqueue(w.lines...)
	}
	w.lines = nil
}

// awaitAll waits until f returns true for every delivery to the agents of the ways.
func (w *canaryWorld) awaitAll(what string, ways []*way, f func(Row) bool) {
	w.t.Helper()
	w.flush()
	var open []string
	err := Until(w.ctx, pollSlow/2, what, func() (bool, error) {
		rows, err := w.Rows(w.ctx)
		open = nil
		for _, v := range ways {
			n := 0
			for r := range maps.Values(rows) {
				if r.AgentID != fmt.Sprint(v.number) {
					continue
				}
				n++
				if !f(r) {
					open = append(open, fmt.Sprintf("%s: %s is %s %s after %d attempts", v.name, r.ID, r.Status, r.Reason, r.Attempts))
				}
			}
			if n != v.jobs {
				open = append(open, fmt.Sprintf("%s: %d deliveries of %d", v.name, n, v.jobs))
			}
		}
		return len(open) == 0 && err == nil, err
	})
	if err != nil {
		w.t.Fatalf("%v\n%s\n%s", err, strings.Join(open, "\n"), tail(w.worker.Log()))
	}
}

// giveAll stores a credential for each of the ways, by commands that run at the same time.
func giveAll(ways []*way) {
	var all sync.WaitGroup
	for _, v := range ways {
		all.Go(v.give)
	}
	all.Wait()
}

// introduce calls every agent once. A delivery that needs a credential is held, and released when the credential is
// stored.
func (w *canaryWorld) introduce(ways []*way) {
	w.t.Helper()
	var asking []*way
	for _, v := range ways {
		w.put(v, "", "answer")
		if v.give != nil {
			asking = append(asking, v)
		}
	}
	w.awaitAll("deliveries to be held for want of a credential", asking, func(r Row) bool { return r.Status == "held" && r.Reason == "auth_required" })
	giveAll(asking)
	w.breakServersFile() // the worker, which keeps what it knows, reads it within two seconds
	w.awaitAll("every credential to be taken", ways, func(r Row) bool { return r.Status == "delivered" })
	w.lookAtProcesses() // the command is running now
	w.lookAtEnvironments(w.worker.Process, ownSecrets...)
}

// mishap lets every mishap happen to every agent.
func (w *canaryWorld) mishap(ways []*way) {
	w.t.Helper()
	happenings := slices.Sorted(maps.Keys(mishaps))
	for _, v := range ways {
		if v.agent == nil {
			w.put(v, "", "answer")
			continue
		}
		w.put(v, "", happenings...)
		if v.number == 1 {
			w.put(v, w.control, "answer")
		}
		if !strings.Contains(v.name, "old") {
			w.put(v, "agent.receivePicky", "answer")
		}
	}
	w.refusedJobs()
	w.awaitAll("everything to have happened", ways, Row.Final)
	w.must(Until(w.ctx, pollSlow, "the broken servers file to be refused", func() (bool, error) {
		log, err := os.ReadFile(w.worker.Log())
		return bytes.Contains(log, []byte("X Written")), err
	}))
	w.file(serversName, w.servers)
	w.probe(ways)
	for _, v := range ways {
		for _, what := range happenings {
			if v.agent != nil && v.agent.count(what) == 0 {
				w.t.Errorf("%s: %q never happened: %v", v.name, what, w.outcomes(v))
			}
		}
	}
}

// outcomes returns the outcomes of a way's deliveries, with one error text of each kind.
func (w *canaryWorld) outcomes(v *way) (out []string) {
	w.t.Helper()
	w.must(w.SQL(w.ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `SELECT count(*) || ' ' || status || ' ' || coalesce(reason, '') || ' ' || coalesce(max(error), '')
			FROM herald.deliveries WHERE agent_id = $1 AND chain_id = 8453 GROUP BY status, reason`, v.number)
		if err == nil {
			out, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	}))
	return out
}

// refusedJobs enqueues invalid jobs with secrets, and one for an agent whose chain cannot be read.
func (w *canaryWorld) refusedJobs() {
	w.t.Helper()
	secret := w.secret("a header of a job that is refused", "/")
	endpoint := `{"transport":"http","url":"http://127.0.0.1:1/","headers":%s}`
	var lines strings.Builder
	refused := []string{`{"Authorization":["Bearer ` + secret + `"]}`, `{"Authorization":"Bearer ` + secret + `\n"}`, `{"X-A":"` + secret + `","x-a":"` + secret + `"}`,
		`{"Host":"` + secret + `"}`, `"` + secret + `"`}
	for _, headers := range refused {
		lines.WriteString(w.job(900, 1, "answer", "", fmt.Sprintf(endpoint, headers)))
	}
	_, _, err := w.Site.Enqueue(w.ctx, strings.NewReader(lines.String()))
	said := fmt.Sprint(err)
	if strings.Count(said, "\nrefused ")+strings.Count(said, ": refused ") != len(refused) {
		w.t.Errorf("jobs were taken that have to be refused: %s", said)
	}
	w.see("commands", "enqueue of what is refused", []byte(said))
	w.addTask(w.job(900, 2, "answer", "", fmt.Sprintf(endpoint, `{"Host":"`+w.secret(foreignSecrets[1], "/")+`"}`)))
	w.addTask(w.job(900, 3, "answer", "", fmt.Sprintf(endpoint, `{"X-A":"`+w.secret(waitingSecret, "/")+`"}`)), asynq.ProcessIn(time.Hour))
	w.enqueue(fmt.Sprintf(`{"type":"NewFeedback","chainId":31337,"agentId":"901","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
		`"identityRegistry":"0x%040x","reputationRegistry":"0x%040x","action":{"resolveEndpoint":true}}`+"\n", 1, 2, 3))
}

// refuse makes every agent refuse the credential that it accepted before.
func (w *canaryWorld) refuse(ways []*way) {
	w.t.Helper()
	ways = slices.DeleteFunc(slices.Clone(ways), func(v *way) bool { return v.agent == nil })
	for _, v := range ways {
		v.agent.state.Store(refuses)
		w.put(v, "", "answer")
	}
	w.awaitAll("every credential to be refused", ways, func(r Row) bool { return r.Final() || r.Status == "held" })
	for _, v := range ways {
		if v.agent.challenge == "" && v.agent.count(refuses) == 0 { // an OAuth agent may have received an expired token
			w.t.Errorf("%s was refused by nobody", v.name)
		}
	}
}

// hang starts calls that do not end, each with its credential. Refused credentials are replaced first.
func (w *canaryWorld) hang(ways []*way) {
	w.t.Helper()
	var calls []*keeper
	var refused []*way
	for _, v := range ways {
		if v.agent == nil || v.give == nil && v.line == nil {
			continue
		}
		v.agent.state.Store(hangs)
		if strings.Contains(v.name, "servers file") {
			continue // its credential was refused, and is not tried again before it changes
		}
		calls = append(calls, v.agent)
		if v.give != nil {
			refused = append(refused, v)
		} else {
			w.put(v, "", "answer")
		}
	}
	giveAll(refused)
	w.flush()
	w.must(Until(w.ctx, pollQuick, "calls to be under way", func() (bool, error) {
		return !slices.ContainsFunc(calls, func(k *keeper) bool { return k.hung.Load() == 0 }), nil
	}))
}

// TestCanaryFindsEchoes: the search would find the secrets in the keepers' answers, in every spelling.
func TestCanaryFindsEchoes(t *testing.T) {
	t.Parallel()
	secret := canary.Secret{Name: "planted", Text: canary.Token(`/"<`)}
	needles, err := canary.NewNeedles(secret)
	heraldtest.Must(t, err)
	for _, said := range append(inJSON(secret.Text), told([]string{secret.Text}), sentence([]string{secret.Text})) {
		if len(needles.Search("here", []byte(said))) == 0 {
			t.Errorf("not found: %s", said)
		}
	}
}
