package main

import (
	"bytes"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/awaytest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"
)

// connecting maps the commands that need the database to their other arguments. SERVERS is a servers file that names
// agent 8453:42, TOKENS is a list to import, POLICY is a policy.
var connecting = map[string]string{
	"migrate apply":       "",
	"migrate status":      "",
	"keys list":           "",
	"keys rotate promote": "--cleartext",
	"keys rotate remove":  "KEY",
	"keys reencrypt":      "",
	"token set":           "8453:42 --origin https://agent.example",
	"token list":          "",
	"token remove":        "8453:42 --origin https://agent.example",
	"token import":        "--chain 8453 --yes TOKENS",
	"agent list":          "",
	"agent show":          "8453:42",
	"agent enable":        "8453:42",
	"agent disable":       "8453:42",
	"agent policy":        "8453:42 onUnknown=hold",
	"policy test":         "POLICY",
	"chain list":          "",
	"chain show":          "8453",
	"delivery list":       "",
	"delivery groups":     "",
	"delivery show":       oneID,
	"find":                "8453:42",
	"delivery replay":     oneID,
	"delivery cancel":     oneID,
	"delivery audit":      "",
	"api-token create":    "indexer --scope enqueue",
	"api-token list":      "",
	"api-token revoke":    "0123456789ab",
	"signing-key list":    "",
	"signing-key rotate":  "",
}

// dispatches contains the commands of connecting that enqueue tasks in Redis.
var dispatches = map[string]bool{"token set": true, "token remove": true, "token import": true, "agent enable": true, "agent disable": true,
	"delivery replay": true}

// apart maps the other commands to the reason for their absence from connecting.
var apart = map[string]string{
	"serve":           "waits for its database as long as it takes: internal/app",
	"doctor":          "says what is away, line by line: TestDoctorNamesMissingServices",
	"config":          "reads the environment alone",
	"keys init":       "makes a keyset of nothing",
	"keys rotate add": "looks at the rows at hand only to warn, and does without them: TestRotateAddUnderFaults",
	"token login":     "asks the authorization server first: TestTokenLoginFindsFaultsFirst",
	"agent resolve":   "asks the chain and the web alone",
	"agent probe":     "does without a store: TestProbeByChain",
	"agent check":     "does without a store: TestCheckWithoutStore",
	"embedded fetch":  "fetches programs",
}

// commandPaths returns all commands, including hidden ones.
func commandPaths(t *testing.T) []string {
	t.Helper()
	parser, err := kong.New(&commands{}, kong.Vars{"version": ""})
	heraldtest.Must(t, err)
	var paths []string
	for _, leaf := range parser.Model.Leaves(false) {
		paths = append(paths, strings.TrimPrefix(leaf.FullPath(), parser.Model.Name+" "))
	}
	return paths
}

// TestConnectionFails checks that every command that connects ends with exit code 1 and a sentence with the cause and a
// remedy. All commands connect by the same functions, so each is called for every fourth cause, and for all causes that
// concern only some commands.
func TestConnectionFails(t *testing.T) {
	t.Parallel()
	paths := commandPaths(t)
	for _, path := range paths {
		_, connects := connecting[path]
		if reason := apart[path]; connects == (reason != "") {
			t.Errorf("worker %s: say in this test how it is called, or why it needs no database", path)
		}
	}
	heraldtest.Equal(t, "commands, of which each is listed here", len(paths), len(connecting)+len(apart))
	servers, tokens := filepath.Join(t.TempDir(), "servers.json"), filepath.Join(t.TempDir(), "tokens")
	policy := filepath.Join(t.TempDir(), "policy.json")
	write(t, policy, `{}`)
	write(t, servers, `{"servers":{"8453:42":{"url":"https://agent.example/mcp"}}}`)
	write(t, tokens, "42,secret-token\n")
	_, first, _ := worker(t, nil, "keys", "init", "--cleartext")
	keyset, spare := spareKey(t, strings.TrimSpace(first))
	fill := strings.NewReplacer("TOKENS", tokens, "KEY", spare, "POLICY", policy)
	var group errgroup.Group
	group.SetLimit(16) // most of them wait
	for i, w := range awaytest.Ways(t) {
		for k, path := range slices.Sorted(maps.Keys(connecting)) {
			if w.Schema && strings.HasPrefix(path, "migrate") || w.Queue && !dispatches[path] || !w.Schema && !w.Queue && (i+k)%4 > 0 {
				continue
			}
			group.Go(func() error {
				env := append([]string{"HERALD_DATA=" + t.TempDir(), "HERALD_CACHE=" + t.TempDir(), "HERALD_SERVERS_FILE=" + servers}, w.Env...)
				env = append(env, "HERALD_KEYSET="+keyset) // so that only the database is at fault
				args := append(append(strings.Fields(path), w.Flag()), strings.Fields(fill.Replace(connecting[path]))...)
				var out, errs bytes.Buffer
				code := runCommand(&command{ctx: t.Context(), in: strings.NewReader("secret-token"), out: &out, err: &errs, tty: nobody}, args, env)
				if complaint := w.Complaint(code, out.String(), errs.String()); complaint != "" {
					t.Errorf("%s: worker %s: %s\n%s%s", w.Name, strings.Join(args, " "), complaint, out.String(), errs.String())
				}
				return nil
			})
		}
	}
	_ = group.Wait()
}

func nobody() (io.ReadWriteCloser, error) { return nil, os.ErrNotExist }

// spareKey adds a key to a keyset and returns both. The key does not seal yet, so it can be removed.
func spareKey(t *testing.T, keyset string) (both, id string) {
	t.Helper()
	env := []string{"HERALD_KEYSET=" + keyset}
	out, errs := checkWorker(t, env, 0, "was added", "keys", "rotate", "add", "--cleartext")
	m := regexp.MustCompile(`key (\d+) `).FindStringSubmatch(errs)
	return strings.TrimSpace(out), m[1]
}

func write(t *testing.T, path, text string) {
	t.Helper()
	heraldtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

// TestKeysWithFaultsInTheConfiguration checks that only commands that create a keyset accept an invalid configuration.
// Other commands could connect to a different database than intended.
func TestKeysWithFaultsInTheConfiguration(t *testing.T) {
	t.Parallel()
	_, key, _ := worker(t, nil, "keys", "init", "--cleartext")
	env := []string{"DATABASE_URL=nonsense", "REDIS_URL=redis://127.0.0.1:1", "HERALD_KEYSET=" + strings.TrimSpace(key)}
	for args, want := range map[string]int{"keys init --cleartext": 0, "keys rotate add --cleartext": 0, "keys list": exitMisuse, "keys reencrypt": exitMisuse,
		"keys rotate remove 1": exitMisuse} {
		checkWorker(t, env, want, map[int]string{exitMisuse: "DATABASE_URL"}[want], strings.Fields(args)...)
	}
}

// TestRotateAddUnderFaults checks that `keys rotate add` reads the rows only to warn. With an invalid configuration it
// does not connect, because the database may be a different one than intended. A silent server delays the new keyset by
// --timeout at most.
func TestRotateAddUnderFaults(t *testing.T) {
	t.Parallel()
	_, key, _ := worker(t, nil, "keys", "init", "--cleartext")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	heraldtest.Must(t, err)
	asked := make(chan net.Conn, 100)
	go func() {
		defer close(asked)
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			asked <- conn
		}
	}()
	env := []string{"DATABASE_URL=postgres://herald@" + silent.Addr().String() + "/herald", "REDIS_URL=redis://127.0.0.1:1", "HERALD_KEYSET=" + strings.TrimSpace(key)}
	add := []string{"keys", "rotate", "add", "--cleartext", "--timeout=500ms"}
	checkWorker(t, append(env, "HERALD_CONCURRENCY=nonsense"), 0, "was added", add...)
	heraldtest.Equal(t, "connections with a fault", len(asked), 0)
	checkWorker(t, env, 0, "was added", add...) // with a silent server
	heraldtest.Must(t, silent.Close())
	connections := 0
	for conn := range asked {
		connections++
		_ = conn.Close()
	}
	if connections == 0 {
		t.Error("without a fault nothing was looked at, so that the first case shows nothing")
	}
}

// A fault in a command (here: of the test, which gives it no stdin) is reported like other failures, and first on the screen.
func TestPanicIsASentence(t *testing.T) {
	t.Parallel()
	var out, said bytes.Buffer
	code := runCommand(&command{ctx: t.Context(), out: &out, err: &said, tty: nobody}, []string{"token", "set", "8453:42", "--origin", "https://agent.example"},
		[]string{"HERALD_DATA=" + t.TempDir(), "HERALD_KEYSET=" + heraldtest.Keyset(t)}) // without a stdin
	if code != exitFailed || !strings.HasPrefix(said.String(), "worker: stopped by a fault in Herald: ") || !strings.Contains(said.String(), "goroutine ") {
		t.Errorf("exit code %d\n%s", code, said.String())
	}
}

// freezing returns the URL of a database behind a proxy. Once a client has sent the text at, the proxy forwards nothing
// more, on existing and new connections.
func freezing(t *testing.T, database, at string) (address string, frozen *atomic.Bool) {
	t.Helper()
	gate, through := heraldtest.PostgresGate(t, database)
	gate.Open()
	frozen = &atomic.Bool{}
	forward := func(to io.Writer, from io.Reader, watch string) {
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if watch != "" && bytes.Contains(buf[:n], []byte(watch)) {
				frozen.Store(true)
			}
			if err != nil {
				return
			}
			if !frozen.Load() {
				_, _ = to.Write(buf[:n])
			}
		}
	}
	proxy := heraldtest.Listen(t, func(in net.Conn) {
		out, err := net.Dial("tcp", gate.Address)
		if err != nil {
			return
		}
		done := make(chan struct{})
		go func() { defer close(done); forward(in, out, "") }()
		forward(out, in, at)
		_ = out.Close()
		<-done
	})
	return strings.Replace(through, gate.Address, proxy, 1), frozen
}

// TestCommandsEndWithTheirTimeout checks that a command ends after its --timeout if the database stops answering during
// a statement.
func TestCommandsEndWithTheirTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second
	var group errgroup.Group // they do nothing but wait
	for args, at := range map[string]string{
		"delivery list":            "FROM herald.open_deliveries",
		"delivery show " + oneID:   "FROM herald.deliveries",
		"delivery cancel " + oneID: "herald.deliveries",
		"agent list":               "herald.agents",
		"agent disable 8453:42":    "herald.agents",
		"keys list":                "secret_headers",
		"keys reencrypt":           "secret_headers",
		"token list":               "agent_mcp_tokens",
		"migrate status":           "herald.migrations",
		"api-token list":           "herald.migrations",
	} {
		database, frozen := freezing(t, heraldtest.Postgres(t, postgres.Migrate), at)
		env := []string{"DATABASE_URL=" + database, "REDIS_URL=redis://127.0.0.1:1", "HERALD_KEYSET=" + heraldtest.Keyset(t)}
		group.Go(func() error {
			began := time.Now()
			code, out, errs := worker(t, env, append(strings.Fields(args), "--timeout="+timeout.String())...)
			took := time.Since(began)
			if !frozen.Load() || code != exitFailed || took > timeout+10*time.Second { // it takes one second on an idle machine
				t.Errorf("%s: frozen %t, after %s exit code %d\n%s%s", args, frozen.Load(), took.Round(time.Millisecond), code, out, errs)
			}
			if says := "worker: the database took longer than 2s to answer: try again, or give it longer with --timeout"; args == "delivery list" && !strings.Contains(errs, says) {
				t.Errorf("%s does not say %q:\n%s", args, says, errs)
			}
			return nil
		})
	}
	_ = group.Wait()
}

// TestProbeDoesNotWaitForTheDatabase checks that a probe does not wait for an unavailable database, because it does not
// need one.
func TestProbeDoesNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	a := newMCPAgent(t, nil)
	began := time.Now()
	code, out, errs := worker(t, []string{"DATABASE_URL=postgres://herald@" + heraldtest.Address(t) + "/herald", "REDIS_URL=redis://127.0.0.1:1",
		"HERALD_KEYSET=" + heraldtest.Keyset(t), "HERALD_ALLOW_HTTP=true", "HERALD_ALLOW_NETWORKS=127.0.0.0/8"}, "agent", "probe", "8453:42", "--url", a.URL)
	took := time.Since(began)
	if code != 0 || !strings.Contains(out, "fitted to agent.receiveFeedback") || took > 4*time.Second {
		t.Errorf("after %s exit code %d\n%s%s", took.Round(time.Millisecond), code, out, errs)
	}
}
