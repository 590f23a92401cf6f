package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/operator/doctor"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

func TestMain(m *testing.M) {
	transport.RunSupervisor()                                             // this binary is the worker of some tests
	if err := os.Setenv("PROBE_TEST_KEY", "hunter2hunter2"); err != nil { // which a servers file names
		panic(err)
	}
	if os.Getenv(mainVariable) != "" {
		main()
	}
	heraldtest.Main(m)
}

// worker runs the command and returns its exit code and output. It checks that the output contains no control
// sequences.
func worker(t testing.TB, env []string, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	defaults := []string{"HERALD_DATA=" + openFolder(t), "HERALD_LISTEN=127.0.0.1:0", "IPFS_GATEWAYS=" + answeringGateway(t)}
	a := &command{ctx: t.Context(), in: os.Stdin, out: &stdout, err: &stderr, tty: openTerminal}
	code = runCommand(a, args, append(defaults, env...))
	checkTerminal(t, args, stdout.String())
	return code, stdout.String(), stderr.String()
}

// checkWorker runs the command, and checks its exit code and that its output contains a text. It returns the output.
func checkWorker(t testing.TB, env []string, code int, says string, args ...string) (out, errs string) {
	t.Helper()
	got, out, errs := worker(t, env, args...)
	if got != code || !strings.Contains(out+errs, says) || strings.Contains(out+errs, "hunter2") {
		t.Errorf("worker %v: exit code %d, want %d and %q\n%s%s", args, got, code, says, out, errs)
	}
	return out, errs
}

// checkTerminal checks that the output of a command contains no control sequences.
func checkTerminal(t testing.TB, args []string, out string) {
	t.Helper()
	if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && text.DrivesTerminal(r) }); i >= 0 {
		t.Errorf("worker %v drives the terminal: %.100q", args, out[i:])
	}
}

// answeringGateway returns the URL of a local IPFS gateway, for tests that check that a gateway answers. Tests must not
// use the public ones.
func answeringGateway(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(ipfstest.New().Handler())
	t.Cleanup(s.Close)
	return s.URL
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, c := range map[string]struct {
		env  []string
		args []string
		code int
		says string
	}{
		"help":              {nil, []string{"--help"}, 0, "Usage: worker"},
		"an unknown word":   {nil, []string{"nonsense"}, 2, "nonsense"},
		"a near word":       {nil, []string{"docter"}, 2, `there is no command "docter": did you mean doctor?`},
		"a watch":           {nil, []string{"watch", "8453"}, 2, "`enqueue watch CHAIN` follows a chain, and so does a worker with HERALD_WATCH"},
		"an unknown option": {nil, []string{"config", "--nonsense"}, 2, "nonsense"},
		"a bad setting":     {[]string{"HERALD_CONCURRENCY=many"}, []string{"config"}, 2, "HERALD_CONCURRENCY"},
		"config":            {[]string{"HERALD_API_TOKEN=hunter2"}, []string{"config"}, 0, "HERALD_CONCURRENCY"},
		"its data folder":   {[]string{"HERALD_DATA="}, []string{"config"}, 0, embedded.DefaultDataDir()},
		"its cache":         {nil, []string{"config"}, 0, embedded.DefaultCacheDir()},
		"keys":              {nil, []string{"keys", "init", "--cleartext"}, 0, ""},
		"no listener":       {[]string{"HERALD_LISTEN=0.0.0.0:0"}, nil, 1, "HERALD_API_TOKEN"},
		"version":           {nil, []string{"--version"}, 0, "worker devel (go1."},
		"version of a word": {nil, []string{"delivery", "list", "--version"}, 0, "worker devel (go1."},
		"no time":           {nil, []string{"delivery", "list", "--timeout=0s"}, 2, "worker: --timeout 0s is not longer than 0s"},
		"no life":           {nil, []string{"api-token", "create", "x", "--scope", "read", "--expires-in", "0s"}, 2, "worker: --expires-in 0s is not longer than 0s"},
		"time at first":     {nil, []string{"--timeout=-1s", "delivery", "list"}, 2, "worker: --timeout -1s is not"},
		"not a time":        {nil, []string{"agent", "show", "8453:42", "--timeout=soon"}, 2, "--timeout"},
	} {
		checkWorker(t, c.env, c.code, c.says, c.args...)
	}
}

func TestOperatorCommands(t *testing.T) {
	t.Parallel()
	d := prepareDesk(t, heraldtest.EmptyPostgres(t))
	heraldtest.Contains(t, "before", d.out("migrate", "status"), "pending")
	diagnose(t, 1, d.env...).says("migrations", doctor.MarkFail, "worker migrate")
	d.says(1, "worker migrate", "delivery", "list")
	d.says(0, "applied", "migrate")
	d.says(0, "nothing to apply", "migrate")
	heraldtest.Lacks(t, "after", string(ask[json.RawMessage](d, "migrate", "status")), `"pending"`)
	for _, check := range []string{"postgres", "migrations", "redis", "keyset", "chains"} {
		d.says(0, "ok "+check, "doctor")
	}
	d.says(0, "ok deliveries none is held or overdue, and none failed in the last hour ok workers none is running, and no delivery is open", "doctor")
	heraldtest.Equal(t, "nothing", d.out("delivery", "list", "--json"), "{\n  \"deliveries\": []\n}\n")

	d.connect()
	good := d.end(job.Job{Kind: job.KindNewFeedback, ChainID: 8453, AgentID: big.NewInt(42), FeedbackIndex: 1, Value: big.NewInt(1), Tag1: "\u202egnp"},
		ledger.Outcome{Status: outcome.Delivered, Called: true, AgentOK: true, FileVerification: "raw", FileSource: "cid",
			FileDisagrees: []string{"value", "clientAddress"}, ToolName: "agent.\x1b[2JreceiveFeedback",
			Endpoint: "https://a.example/\u202e", Response: json.RawMessage(`{"text":"\u001b[31mred \u202e"}`)})
	refused, _, err := d.store.Accept(t.Context(), []ledger.Intake{{Refused: "\x1b]0;owned\x07 \u202etxt", Key: "invalid:00",
		Job: job.Job{Kind: job.KindNewFeedback}}})
	heraldtest.Must(t, err)
	bad := refused[0].ID
	listed := d.out("delivery", "list")
	heraldtest.Contains(t, "the list", listed, good.String(), bad.String())
	heraldtest.Equal(t, "the newer is first",
		strings.Index(listed, bad.String()) < strings.Index(listed, good.String()), true)
	for _, want := range []string{"delivered", "attempt 1", "eip155:8453:", "raw cid", "value, clientAddress: the event wins"} {
		d.says(0, want, "delivery", "show", good.String())
	}
	if got := ask[ledger.Delivery](d, "delivery", "show", good.String()); got.ID != good || !strings.Contains(string(got.Job), "gnp") || len(got.FileDisagrees) != 2 {
		t.Errorf("%+v", got)
	}
	d.says(0, "invalid_job", "delivery", "show", bad.String())
}

func TestDoctorNamesMissingServices(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=postgres://u:hunter2@127.0.0.1:1/d", "REDIS_URL=redis://:hunter2@127.0.0.1:1", "RPC_URL_8453=http://127.0.0.1:1/hunter2",
		"RPC_URL_1=http://127.0.0.1:1/", `HERALD_STDIO_COMMANDS=[["/nowhere/agent"]]`}
	_, key, _ := worker(t, nil, "keys", "init", "--cleartext")
	got := ""
	for _, f := range diagnose(t, 1, append(env, "HERALD_KEYSET="+strings.TrimSpace(key))...).findings {
		got += fmt.Sprintf("%s=%t ", f.Check, f.OK)
	}
	if want := "configuration=true keyset=true postgres=false redis=false port=true chain 1=false chain 8453=false gateways=true stdio=false "; got != want {
		t.Errorf("%s", got)
	}
}
