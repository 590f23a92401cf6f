package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/tokens"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// canary is part of every token in these tests. Output and records must not contain it.
const canary = "canary-4c6f7264"

// issued matches the secrets of an authorization server, which output must not contain either.
var issued = regexp.MustCompile(`(access|refresh|code|secret)-[A-Z2-7]{20,}`)

// keyboard is a terminal with typed input.
type keyboard struct {
	io.Reader
	shown bytes.Buffer
}

func (k *keyboard) Write(p []byte) (int, error) { return k.shown.Write(p) }
func (k *keyboard) Close() error                { return nil }

// lookedAt is a Writer that calls look with each output.
type lookedAt struct {
	io.Writer
	look func(string)
}

func (w lookedAt) Write(p []byte) (int, error) {
	if w.look != nil {
		w.look(string(p))
	}
	return w.Writer.Write(p)
}

// give runs a command line with stdin. typed is the input at the terminal; "" means that there is no terminal.
func (d *desk) give(code int, stdin, typed string, args ...string) (out, errs string) {
	d.t.Helper()
	var stdout, stderr bytes.Buffer
	k := &keyboard{Reader: strings.NewReader(typed)}
	a := &command{ctx: d.t.Context(), in: strings.NewReader(stdin), out: &stdout, err: lookedAt{&stderr, d.watch}, tty: func() (io.ReadWriteCloser, error) {
		if typed == "" {
			return nil, errors.New("nobody")
		}
		return k, nil
	}}
	a.backend = kept{attached{a}, d}
	got := runCommand(a, args, slices.Concat([]string{"HERALD_DATA=" + openFolder(d.t)}, d.env, []string{"HERALD_LOG_LEVEL=debug"}))
	out, errs = stdout.String(), stderr.String()+k.shown.String()
	if got != code {
		d.t.Fatalf("worker %v: exit code %d, want %d\n%s%s", args, got, code, out, errs)
	}
	if strings.Contains(out+errs, canary) || issued.MatchString(out+errs) {
		d.t.Errorf("worker %v tells the token:\n%s%s", args, out, errs)
	}
	checkTerminal(d.t, args, out)
	return out, errs
}

// answers runs give, and checks that the output contains want. A space in want matches any spaces.
func (d *desk) answers(code int, want, stdin, typed string, args ...string) (out string) {
	d.t.Helper()
	out, errs := d.give(code, stdin, typed, args...)
	if !strings.Contains(words(out+errs), want) {
		d.t.Errorf("worker %v does not say %q:\n%s%s", args, want, out, errs)
	}
	return out
}

func (d *desk) tokens() []operator.Token {
	d.t.Helper()
	out, _ := d.worker(0, "token", "list", "--json")
	return decode[[]operator.Token](d.t, out)
}

// reveals returns the decrypted tokens of an agent by origin. It uses the desk's keyset.
func (d *desk) reveals(agent string) map[string]string {
	d.t.Helper()
	k := d.keys()
	list, err := records.New(d.store).TokensAfter(d.t.Context(), nil)
	heraldtest.Must(d.t, err)
	opened := map[string]string{}
	for _, t := range list {
		if fmt.Sprintf("%d:%s", t.ChainID, t.ID) != agent {
			continue
		}
		plain, err := k.Open(t.Ciphertext, t.Binding())
		heraldtest.Must(d.t, err)
		opened[string(t.Origin)] = t.Scheme + " " + t.Header + " " + string(plain)
	}
	return opened
}

// nowhere checks that neither the audit nor the agents' rows contain a token.
func (d *desk) nowhere() {
	d.t.Helper()
	shown := d.out("delivery", "audit", "--json") + d.out("agent", "list", "--json")
	heraldtest.Lacks(d.t, "the audit and the agents' rows", shown, canary)
}

func TestTokenSet(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	held := d.ended(42, ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true, AgentError: "401"})
	other := d.ended(7, ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true, AgentError: "401"})
	origin := []string{"token", "set", "8453:42", "--origin"}

	d.answers(0, "is stored for https://agent.example/mcp, sent as Authorization: Bearer; 1 held delivery was released (audit 1)", canary+"\n", "",
		append(origin, "HTTPS://Agent.Example:443/mcp")...)
	if got := d.reveals("8453:42"); len(got) != 1 || got["https://agent.example"] != "bearer Authorization "+canary {
		t.Errorf("%v", got)
	}
	if d.status(held) != "queued" || d.status(other) != "held auth_required" || d.pending(queue.First)+d.pending(queue.Retry) == 0 {
		t.Errorf("%s, %s", d.status(held), d.status(other))
	}
	out, _ := d.give(0, canary+"2\r\n", "", append(origin, "https://other.example", "--header", "x-api-key", "--expires", "3d", "--json", "--actor", "on call")...)
	c := decode[tokens.Change](t, out)
	if c.Agent != "8453:42" || c.Origin != "https://other.example" || c.Scheme != "header" || c.Header != "X-Api-Key" || c.Audit != 2 ||
		c.ExpiresAt == nil || time.Until(*c.ExpiresAt) < 71*time.Hour || time.Until(*c.ExpiresAt) > 72*time.Hour {
		t.Errorf("%s", out)
	}
	heraldtest.Equal(t, "the stored token", d.reveals("8453:42")["https://other.example"],
		"header X-Api-Key "+canary+"2")
	path := filepath.Join(t.TempDir(), "token")
	d.says(0, "warning: here the file cannot be read: no such file", "token", "set", "8453:9", "--origin", "http://10.0.0.1:8080", "--file", path)
	d.says(0, "warning: over plain http everybody on the way to http://10.0.0.1:8080 reads the token", "token", "set", "8453:9", "--origin", "http://10.0.0.1:8080", "--file", path)
	heraldtest.Equal(t, "the stored token", d.reveals("8453:9")["http://10.0.0.1:8080"], "file Authorization "+path)
	list := d.tokens()
	if len(list) != 3 || list[0].Agent != "8453:9" || list[0].Scheme != "file" || list[1].State != "valid" || list[2].State != "soon" || list[1].Key == 0 {
		t.Errorf("%+v", list)
	}
	d.says(0, "8453:42 https://agent.example /mcp bearer Authorization", "token", "list")
	d.answers(0, "token stored for https://agent.example/mcp, sent as Authorization: Bearer token stored for https://other.example (every path), sent as the header X-Api-Key, until 20",
		"", "", "agent", "show", "8453:42")
	d.says(0, "warn tokens 3 are stored; 1 expires within 7 days: 8453:42 for https://other.example at 20", "doctor")

	d.answers(1, "no token of agent 8453:42 of registry "+strings.ToLower(registryOf(t, 8453).Hex())+" is stored for https://nobody.example", "", "",
		"token", "remove", "8453:42", "--origin", "https://nobody.example")
	d.answers(exitMisuse, "for this origin is stored for https://agent.example/mcp, and not for /evil: say --origin https://agent.example to remove it", "", "",
		"token", "remove", "8453:42", "--origin", "https://agent.example/evil")
	d.says(0, "for https://other.example is removed; 0 held deliveries", "token", "remove", "8453:42", "--origin", "https://OTHER.example/")
	heraldtest.Equal(t, "stored tokens", len(d.tokens()), 2)
	r, err := records.New(d.store).AgentRow(t.Context(), erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(registryOf(t, 8453).Hex()), ID: "42"})
	if err != nil || r.Epoch != 3 || r.State == records.StateNeedsAuth {
		t.Errorf("%+v %v", r, err)
	}
	if a := d.audits(); len(a) != 6 || a[4].Action != "token set" || a[4].Actor != "on call" || !strings.Contains(string(a[4].Filter), "https://other.example") || a[1].State != "failed" {
		t.Errorf("%+v", a)
	}
	d.nowhere()
}

func TestTokenMisuse(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, c := range []struct {
		says, stdin string
		args        []string
	}{
		{"the token on stdin is empty", "\n", nil},
		{"or more than one line", canary + "\n" + canary + "\n", nil},
		{"is longer than 16384 bytes", strings.Repeat("x", 20<<10), nil},
		{"begins with the word Bearer", "Bearer " + canary, nil},
		{"has characters other than printable ASCII", canary + "\x1b[2J", nil},
		{"--header: the header Cookie cannot carry a token", canary, []string{"--header", "cookie"}},
		{"--header: the header Mcp-Session-Id cannot carry a token", canary, []string{"--header", "mcp-session-id"}},
		{`--header: "X Key" is no name`, canary, []string{"--header", "X Key"}},
		{"name it with its absolute path", canary, []string{"--file", "token.txt"}},
		{"--expires \"soon\" is neither", canary, []string{"--expires", "soon"}},
		{"--expires 2020-01-01T00:00:00Z is over already", canary, []string{"--expires", "2020-01-01T00:00:00Z"}},
		{"--expires -1h is over already", canary, []string{"--expires=-1h"}},
		{"--expires \"\" is neither", canary, []string{"--expires", ""}},
		{"--expires 9999-12-31T23:59:59-01:00 is beyond the year 9999", canary, []string{"--expires", "9999-12-31T23:59:59-01:00"}},
		{"--origin: it must be an http or https URL", canary, []string{"--origin", "agent.example"}},
		{"--origin: it holds a user or password", canary, []string{"--origin", "https://user:hunter2@agent.example"}},
		{"its chain has no RPC URL; set RPC_URL_8453, or say --origin", canary, []string{"--origin", ""}},
	} {
		d.answers(exitMisuse, c.says, c.stdin, "", append([]string{"token", "set", "8453:42", "--origin", "https://agent.example"}, c.args...)...)
	}
	d.answers(exitMisuse, "CHAIN:AGENT", canary, "", "token", "set", "42")
	for _, args := range [][]string{{canary}, {"--token", canary}, {"--token=" + canary}, {"--expires=" + canary + "=x", canary}} {
		out, errs := d.worker(exitMisuse, append([]string{"token", "set", "8453:42"}, args...)...) // give checks the output for the canary
		if out != "" || !strings.Contains(errs, "worker: ") {
			t.Errorf("%s%s", out, errs)
		}
	}
	d.says(exitMisuse, "a token is given on stdin and never there", "token", "set", "8453:42", canary)
	d.says(exitMisuse, "missing flags: --chain", "token", "import")
	if got := d.tokens(); len(got) != 0 || len(d.audits()) != 0 {
		t.Errorf("something was stored: %+v", got)
	}
}

// TestTokenOfAnotherKeyset: no token is replaced by one that a running worker cannot decrypt.
func TestTokenOfAnotherKeyset(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	set := []string{"token", "set", "8453:42", "--origin", "https://agent.example"}
	d.answers(0, "is stored for", canary+"1", "", set...)
	running := records.Worker{ID: uuid.New(), Host: "host-7", Keys: []uint32{d.keys().PrimaryID()}}
	heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(), running))
	d.answers(0, "is stored for", canary+"2", "", set...)
	running.Keys = []uint32{7}
	heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(), running))
	d.answers(exitFailed, "nothing was stored: the worker on host-7 ("+running.ID.String()+") cannot decrypt it: its keyset lacks key ", canary+"3", "", set...)
	heraldtest.Equal(t, "the stored token", d.reveals("8453:42")["https://agent.example"], "bearer Authorization "+canary+"2")
}

// TestTokenSetAsks checks that without --origin the command asks at the terminal, not on stdin.
func TestTokenSetAsks(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	file := filepath.Join(t.TempDir(), "servers.json")
	entries := `{"servers": {"8453:42": {"url": "https://agent.example/mcp/secretpath?key=hunter2"}, "8453:7": {"command": "/bin/agent"},
		"8453:8": {"url": "https://agent.example", "auth": {"type": "bearer", "token": "hunter2"}}}}`
	heraldtest.Must(t, os.WriteFile(file, []byte(entries), 0o600))
	d.env = append(d.env, "HERALD_SERVERS_FILE="+file)
	set := []string{"token", "set", "8453:42"}
	d.answers(exitMisuse, "is at https://agent.example (from the servers file): there is no terminal to ask on whether its token may go there, so say --origin https://agent.example",
		canary, "", set...)
	for _, no := range []string{"n\n", "\n", "yesterday\n", "\x1b"} {
		d.answers(exitFailed, "nothing was stored", canary, no, set...)
	}
	heraldtest.Equal(t, "stored tokens", len(d.tokens()), 0)
	_, errs := d.give(0, canary, "Yes\n", set...)
	heraldtest.Contains(t, "the question", errs,
		"Send its token there, and nowhere else, as Authorization: Bearer? [y/N]")
	heraldtest.Lacks(t, "the question", errs, "hunter2", "secretpath")
	heraldtest.Equal(t, "the stored token", d.reveals("8453:42")["https://agent.example"],
		"bearer Authorization "+canary)
	d.answers(exitFailed, "a command for this agent, which accepts no token", canary, "y\n", "token", "set", "8453:7")
	d.answers(exitFailed, "those are sent, and a stored token is not", canary, "y\n", "token", "set", "8453:8")
	d.answers(0, "warning: the servers file has an endpoint and a credential for this agent", canary, "", "token", "set", "8453:8", "--origin", "https://agent.example")
	d.nowhere()
}

// TestTokenImport takes the old backend's table.
func TestTokenImport(t *testing.T) {
	t.Parallel()
	d, p := newDesk(t), newSurroundings(t, true)
	d.env = append(d.env, p.env...)
	header := func(name string) string {
		return fmt.Sprintf(`{"capabilities":{"mcp":{"transport":"http","url":"https://keyed.example/mcp","authentication":{"type":"bearer","tokenHeader":%q}}}}`, name)
	}
	plain, keyed := p.register(data(p.doc("https://Agent.example/mcp"))), p.register(data(header("x-api-key")))
	cookie, none := p.register(data(header("Cookie"))), p.register(data(`{"services":[]}`))
	lines := []string{"agent_id,token", fmt.Sprintf(`%s,%s1`, plain, canary), fmt.Sprintf(`%s,"%s,""2"`, keyed, canary), fmt.Sprintf("%s,%s3", cookie, canary),
		fmt.Sprintf("%s,%s4", none, canary), fmt.Sprintf("%s,%s5", plain, canary), "9999999," + canary + "6", "-1," + canary + "7", "\x1b[2J," + canary + "8", fmt.Sprintf("%s,", keyed)}
	file := filepath.Join(t.TempDir(), "tokens.csv")
	heraldtest.Must(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	load := []string{"token", "import", "--chain", "31337"}
	out, errs := d.worker(exitLeft, append(load, file)...)
	heraldtest.Contains(t, "the output", words(out),
		fmt.Sprintf("2 31337:%s https://agent.example /mcp Authorization from data, ", plain), fmt.Sprintf("3 31337:%s https://keyed.example /mcp X-Api-Key from data, ", keyed),
		fmt.Sprintf("4 31337:%s - - - not stored: the registration names a header that its token is not sent in: the header Cookie", cookie),
		fmt.Sprintf("5 31337:%s - - - not stored: agent 31337:%s", none, none), fmt.Sprintf("6 31337:%s - - - not stored: the agent is in line 2 already", plain),
		"7 31337:9999999 - - - not stored: ", "8 31337:-1 - - - not stored: its agent_id is no agent id", "9 31337:·[2J - - - not stored: its agent_id", "not stored: its token is empty",
		"2 tokens would be stored for 2 origins. Look whether each may have its token. Nothing was changed: the same command with --yes stores them.")
	if !strings.Contains(errs, "7 of 9 tokens are left out") || len(d.tokens()) != 0 || len(d.audits()) != 0 {
		t.Errorf("a dry run changed something: %s", errs)
	}
	stdin, err := os.ReadFile(file)
	heraldtest.Must(t, err)
	d.answers(exitLeft, "2 of 2 tokens are stored for 2 origins; 0 held deliveries were released (audit 1)", string(stdin), "", append(load, "--yes")...)
	heraldtest.Equal(t, "the stored token", d.reveals("31337:" + plain.String())["https://agent.example"],
		"bearer Authorization "+canary+"1")
	heraldtest.Equal(t, "the stored token", d.reveals("31337:" + keyed.String())["https://keyed.example"],
		`header X-Api-Key `+canary+`,"2`)
	out, _ = d.give(exitLeft, string(stdin), "", append(load, "--yes", "--json")...)
	if r := decode[tokens.Import](t, out); r.Stored != 2 || len(r.Rows) != 9 || !r.Rows[0].Stored || r.Rows[2].Problem == "" {
		t.Errorf("%s", out)
	}
	for says, text := range map[string]string{"wrong number of fields": "1," + canary + ",3\n", "the file is not CSV": "1,\"" + canary + "\n"} {
		d.answers(exitMisuse, says, text, "", load...)
	}
	d.answers(exitMisuse, "set RPC_URL_8453", "1,"+canary+"\n", "", "token", "import", "--chain", "8453")
	d.says(0, "there is nothing to store", load...)

	// `token set` without --origin uses the registration.
	d.answers(0, "Send its token there, and nowhere else, as the header X-Api-Key?", canary, "y\n", "token", "set", "31337:"+keyed.String())
	d.answers(exitMisuse, "the header Cookie cannot carry a token: it has another meaning; name another with --header", canary, "y\n", "token", "set", "31337:"+cookie.String())
	d.answers(0, "is stored for https://keyed.example/mcp, sent as the header X-Own", canary, "y\n", "token", "set", "31337:"+cookie.String(), "--header", "x-own")
	d.answers(exitFailed, "is not found: ", canary, "y\n", "token", "set", "31337:"+none.String())
	d.nowhere()
}

// TestStopsReadingStdin: the first Ctrl-C ends a command whose stdin never ends, as that of a terminal or of a program
// that hangs.
func TestStopsReadingStdin(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, args := range [][]string{{"token", "import", "--chain", "8453"},
		{"token", "set", "8453:42", "--origin", "https://agent.example"}} {
		stdin, end := io.Pipe()
		ctx, stop := context.WithCancelCause(t.Context())
		var errs heraldtest.Log
		code := make(chan int, 1)
		go func() {
			code <- runCommand(&command{ctx: ctx, in: stdin, out: io.Discard, err: &errs, tty: nobody}, args, d.env)
		}()
		_, err := end.Write([]byte("1,"))
		heraldtest.Must(t, err)
		stop(errors.New("interrupt signal received"))
		heraldtest.Equal(t, "the exit code", heraldtest.Receive(t, "the end of the command", code), exitFailed)
		heraldtest.Contains(t, "the error", errs.String(), "interrupt signal received")
		heraldtest.Must(t, end.Close())
	}
}

// sql executes a statement on the database, without Herald.
func (d *desk) sql(text string) {
	d.t.Helper()
	heraldtest.Exec(d.t, d.setting("DATABASE_URL"), text)
}

// TestTokenImportFromTable imports directly from the old backend's table, as its migrations create it, and does not
// change the table.
func TestTokenImportFromTable(t *testing.T) {
	t.Parallel()
	d, p := newDesk(t), newSurroundings(t, true)
	d.env = append(d.env, p.env...)
	old := heraldtest.EmptyPostgres(t)
	schema, err := os.ReadFile("../../internal/testing/doctest/testdata/old-backend.sql")
	heraldtest.Must(t, err)
	agent := p.register(data(p.doc("https://Agent.example/mcp")))
	heraldtest.Exec(t, old, fmt.Sprintf(`%s; DELETE FROM agent_mcp_tokens;
		INSERT INTO agent_mcp_tokens (agent_id, token) VALUES (%[2]s, '%[3]s'), (9999999, '%[3]s'), (-5, '%[3]s')`, schema, agent, canary))
	table := func() (rows string) {
		t.Helper()
		const all = "SELECT string_agg(t::text, ' ' ORDER BY agent_id) FROM agent_mcp_tokens t"
		heraldtest.Must(t, heraldtest.Connect(t, old).QueryRow(t.Context(), all).Scan(&rows))
		return rows
	}
	before := table()

	d.env = append(d.env, "OLD_DATABASE_URL="+old)
	load := []string{"token", "import", "--chain", "31337", "--from", "OLD_DATABASE_URL"}
	out, _ := d.worker(exitLeft, load...)
	heraldtest.Contains(t, "the output", words(out), fmt.Sprintf("2 31337:%s https://agent.example /mcp Authorization from data, ", agent),
		"1 31337:-5 - - - not stored: its agent_id is no agent id", "3 31337:9999999 - - - not stored: ",
		"1 token would be stored for 1 origin.")
	heraldtest.Equal(t, "tokens that a dry run stored", len(d.tokens()), 0)
	for range 2 { // the import can be repeated
		d.says(exitLeft, "1 of 1 token is stored for 1 origin", append(load, "--yes")...)
		heraldtest.Equal(t, "the stored token", d.reveals("31337:" + agent.String())["https://agent.example"],
			"bearer Authorization "+canary)
	}
	heraldtest.Equal(t, "the old table", table(), before)
	d.says(exitMisuse, "has no table elsewhere.agent_mcp_tokens", append(load, "--schema", "elsewhere")...)
	d.says(exitMisuse, "the name of an environment variable", "token", "import", "--chain", "31337", "--from", "postgres://x:"+canary+"@h/d")
	d.says(exitMisuse, "--from and FILE exclude each other", append(load, "file.csv")...)
	d.env = append(d.env, "OLD_DATABASE_URL=postgres://x:"+canary+"@h:port/d")
	d.says(exitMisuse, "is not a URL: expected postgres://", load...)
	d.nowhere()
}

// TestTokenOfAnOwnerBefore checks that a token stays stored when the agent is transferred to another owner, and that
// `agent show` reports that the token is older than the transfer.
func TestTokenOfAnOwnerBefore(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.answers(0, "is stored for", canary, "", "token", "set", "8453:42", "--origin", "https://agent.example")
	heraldtest.Lacks(t, "before any transfer", d.out("agent", "show", "8453:42"), "transferred", "another owner")
	known, _ := erc8004.KnownDeployment(8453)
	index := uint(1)
	given := job.Job{Kind: job.KindAgentUpdated, ChainID: 8453, IdentityRegistry: known.Identity, AgentID: big.NewInt(42), BlockNumber: 4711,
		TransactionHash: common.Hash{1}, LogIndex: &index, Timestamp: time.Now().Add(time.Hour).Unix()}
	_, _, err := d.store.Accept(t.Context(), []ledger.Intake{{Job: given,
		AgentChange: ledger.AgentChange{From: common.HexToAddress("0xAA"), To: common.HexToAddress("0xBB")}}})
	heraldtest.Must(t, err)
	heraldtest.Contains(t, "after the transfer", d.out("agent", "show", "8453:42"), "in block 4711", "00bb, from 0x",
		"token stored for https://agent.example", "stored before the agent was given to another owner")
}
