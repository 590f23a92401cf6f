package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// to returns a connector that connects to l and counts the releases.
func to(l submitter, released *int) connector {
	return func(context.Context, *config.Config, time.Duration, io.Writer) (submitter, func(), error) {
		return l, func() { *released++ }, nil
	}
}

func nowhere(context.Context, *config.Config, time.Duration, io.Writer) (submitter, func(), error) {
	return nil, nil, errors.New("Postgres is away")
}

func write(t testing.TB, name, content string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	heraldtest.Must(t, os.WriteFile(p, []byte(content), 0o600))
	return p
}

func TestRun(t *testing.T) {
	t.Parallel()
	first, second := write(t, "first", feedback(1)+"\n"+feedback(2)), write(t, "second", feedback(3)) // files without a newline at the end
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("interrupt signal received"))
	for name, c := range map[string]struct {
		ctx            context.Context
		args, environ  []string
		stdin          string
		away           bool
		code           int
		stdout, stderr string // contained in the output; empty stdout: no output
		accepted       int
		fail           error // of the commit
	}{
		"accepted":     {stdin: feedback(1) + "\n", code: 0, stdout: "accepted ", stderr: "enqueue: 1 accepted, 0 known, 0 refused, 0 in conflict\n", accepted: 1},
		"known":        {stdin: feedback(1) + "\n" + feedback(1), code: 0, stdout: "known ", stderr: "1 accepted, 1 known", accepted: 1},
		"refused":      {stdin: "x\n" + feedback(1), code: 3, stdout: "refused - ", stderr: "1 accepted, 0 known, 1 refused", accepted: 1},
		"conflict":     {stdin: feedback(1) + "\n" + feedbackOf(1, 2), code: 3, stdout: "conflict ", stderr: "1 in conflict", accepted: 1},
		"refreshed":    {stdin: `{"type":"AgentUpdated","chainId":1,"agentId":0}`, code: 0, stdout: "refreshed - -", stderr: "1 agent refreshed"},
		"nothing":      {code: 0, stderr: "0 accepted"},
		"no commit":    {stdin: feedback(1), fail: errors.New("it broke"), code: 1, stderr: "enqueue: it broke; lines without an answer"},
		"files":        {args: []string{first, second}, code: 0, stdout: "accepted ", stderr: "3 accepted", accepted: 3},
		"file, dash":   {args: []string{first, "-"}, stdin: feedback(9), code: 0, stdout: "accepted ", stderr: "3 accepted", accepted: 3},
		"json":         {args: []string{"--json"}, stdin: feedback(1), code: 0, stdout: `{"verdict":"accepted","line":1,"id":"`, stderr: "1 accepted", accepted: 1},
		"version":      {args: []string{"--version"}, code: 0, stdout: "enqueue devel (go1."},
		"no time":      {args: []string{"--timeout", "0s"}, code: 2, stderr: "enqueue: --timeout 0s is not longer than 0s"},
		"not a time":   {args: []string{"--timeout", "soon"}, code: 2, stderr: "enqueue: --timeout"},
		"help":         {args: []string{"--help"}, code: 0, stdout: "Usage: enqueue"},
		"flag":         {args: []string{"--nonsense"}, code: 2, stderr: "enqueue: unknown flag --nonsense"},
		"no file":      {args: []string{first + "x"}, code: 2, stderr: "no such file"},
		"folder":       {args: []string{filepath.Dir(first)}, code: 2, stderr: "is a folder"},
		"fault":        {environ: []string{"HERALD_LEASE=1s", "HERALD_LOG_LEVEL=x"}, code: 2, stderr: "enqueue: the configuration has faults:\nHERALD_LOG_LEVEL: must be"},
		"octal":        {args: []string{"backfill", "1", "--from", "010"}, code: 2, stderr: `enqueue: --from: "010" begins with a zero`},
		"too large":    {args: []string{"watch", "1", "--from", "9223372036854775808"}, code: 2, stderr: `enqueue: --from: "9223372036854775808" is not a whole number up to 9223372036854775807`},
		"no chain":     {args: []string{"watch", "-1"}, code: 2, stderr: "enqueue: "},
		"reverse":      {args: []string{"backfill", "1", "--from", "0x10", "--to", "9"}, code: 2, stderr: "enqueue: --to 9 is before --from 16\n"},
		"no rate":      {args: []string{"backfill", "1", "--from", "1", "--rate", "NaN"}, code: 2, stderr: "enqueue: --rate NaN is not a number from 0\n"},
		"no pause":     {args: []string{"watch", "1", "--poll=-1s"}, code: 2, stderr: "enqueue: --poll -1s is below 0s\n"},
		"away":         {away: true, stdin: feedback(1), code: 1, stderr: "enqueue: Postgres is away\n"},
		"interrupted":  {ctx: stopped, stdin: feedback(1), code: 1, stderr: "enqueue: stopped before the end of the input: interrupt signal received"},
		"after a fail": {args: []string{first, second, first + "x"}, code: 2, stderr: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			l, released := newJobList(t), 0
			l.fail = c.fail
			conn := to(l, &released)
			if c.away {
				conn = nowhere
			}
			var stdout, stderr bytes.Buffer
			code := run(ctx, process{c.args, c.environ, strings.NewReader(c.stdin), &stdout, &stderr}, conn)
			if code != c.code || !strings.Contains(stdout.String(), c.stdout) || (c.stdout == "") != (stdout.Len() == 0) || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("code %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
			}
			heraldtest.Equal(t, "accepted jobs", l.accepted, c.accepted)
			if want := len(l.batches); min(want, 1) > released || released > 1 {
				t.Errorf("released %d times", released)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	a, b := write(t, "a", "12345"), write(t, "b", "123")
	for name, c := range map[string]struct {
		paths []string
		stdin io.Reader
		size  int64
		text  string // name and text of each source
	}{
		"files":            {[]string{a, b}, nil, 8, a + ":12345 " + b + ":123 "},
		"standard input":   {nil, strings.NewReader("x"), 0, ":x "},
		"both":             {[]string{a, "-"}, strings.NewReader("x"), 0, a + ":12345 -:x "},
		"input of a shell": {nil, reopen(t, a), 5, ":12345 "},
	} {
		in, err := openInput(c.paths, c.stdin)
		heraldtest.Must(t, err)
		got := ""
		for _, src := range in.sources {
			text, err := io.ReadAll(src)
			heraldtest.Must(t, err)
			got += src.Name + ":" + string(text) + " "
		}
		heraldtest.Equal(t, name, got, c.text)
		heraldtest.Equal(t, name+": size", in.size, c.size)
		heraldtest.Must(t, in.Close())
	}
}

func reopen(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func feedbackWithHeaders(index int) string {
	return strings.Replace(feedback(index), `"score"`, `"action":{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"https://a.example/mcp","headers":{"X-Key":"pw1234"}}},"score"`, 1)
}

// TestRunPostgres runs the command on a real Postgres without Redis. The rows wait for a worker.
func TestRunPostgres(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, postgres.Migrate)
	environ := []string{"DATABASE_URL=" + url, "HERALD_QUEUE=embedded", "HERALD_KEYSET=" + heraldtest.Keyset(t), "HERALD_LOG_LEVEL=error", "HERALD_DB_POOL=4", "HERALD_CONCURRENCY=2"}
	enqueue := func(in string) (int, []string, string) {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), process{nil, environ, strings.NewReader(in), &stdout, &stderr}, connectIntake)
		return code, lines(stdout.String()), stderr.String()
	}
	poison := strings.Replace(feedback(3), `"score"`, "\"tag1\":\"a\\u0000b\xff\",\"meta\":{\"k\\u0000\":[\"\\ud800\",1e300]},\"score\"", 1)
	withHeaders := feedbackWithHeaders(4)
	code, out, said := enqueue(strings.Join([]string{feedback(1), "x", feedback(2), poison, withHeaders, feedback(1), feedbackOf(2, 1)}, "\n"))
	want := []string{"accepted", "refused", "accepted", "accepted", "accepted", "known", "conflict"}
	if code != exitRefused || len(out) != len(want) {
		t.Fatalf("code %d, %q, %s", code, out, said)
	}
	for i, w := range want {
		if !strings.HasPrefix(out[i], w+" ") {
			t.Errorf("line %d: %s", i, out[i])
		}
	}
	if code, out, said = enqueue(feedback(1) + "\n" + poison + "\n" + withHeaders + "\n"); code != exitDone || len(out) != 3 || strings.Count(strings.Join(out, ""), "known ") != 3 {
		t.Errorf("again: code %d, %q, %s", code, out, said)
	}
	heraldtest.Lacks(t, "the output", said+strings.Join(out, ""), "pw1234")
	var rows, repaired, plain int
	err := heraldtest.Connect(t, url).QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE job ? 'sanitized'), count(*) FILTER (WHERE d::text LIKE '%pw1234%') FROM herald.deliveries d`).
		Scan(&rows, &repaired, &plain)
	if err != nil || rows != 4 || repaired != 1 || plain != 0 {
		t.Errorf("%d rows, %d of them repaired, %d with a secret in clear: %v", rows, repaired, plain, err)
	}
}

// TestKeysetOfTheWorkers checks that secret headers are refused if a running worker could not decrypt them, and that jobs
// without headers are accepted nevertheless.
func TestKeysetOfTheWorkers(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, postgres.Migrate)
	st, err := store.Open(postgres.Config{URL: secret.New(url), MaxConns: 2})
	heraldtest.Must(t, err)
	defer st.Close()
	worker := records.Worker{ID: uuid.New(), Host: "host-7", Keys: []uint32{7}, SealsWith: 7}
	heraldtest.Must(t, records.New(st).ReportWorker(t.Context(), worker))
	environ := []string{"DATABASE_URL=" + url, "HERALD_QUEUE=embedded", "HERALD_KEYSET=" + heraldtest.Keyset(t), "HERALD_LOG_LEVEL=error", "HERALD_DB_POOL=4", "HERALD_CONCURRENCY=2"}
	enqueue := func(in string) (int, string) {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), process{nil, environ, strings.NewReader(in), &stdout, &stderr}, connectIntake)
		return code, stdout.String() + stderr.String()
	}
	if code, said := enqueue(feedback(1)); code != exitDone || !strings.Contains(said, "accepted ") {
		t.Errorf("without headers: code %d: %s", code, said)
	}
	code, said := enqueue(feedbackWithHeaders(4))
	heraldtest.Equal(t, "the exit code", code, exitFailed)
	heraldtest.Contains(t, "the error", said, "the worker on host-7 cannot decrypt them: its keyset lacks key ", "Set HERALD_KEYSET to that of the workers")
	heraldtest.Must(t, records.New(st).RemoveWorker(t.Context(), worker.ID))
	if code, said = enqueue(feedbackWithHeaders(4)); code != exitDone || !strings.Contains(said, "accepted ") {
		t.Errorf("without a running worker: code %d: %s", code, said)
	}
}

// TestLinksNoDelivery checks that enqueue, which indexers run next to a chain, links no package that only a worker needs.
func TestLinksNoDelivery(t *testing.T) {
	t.Parallel()
	deps, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil || !strings.Contains(string(deps), "/herald/internal/door/intake\n") {
		t.Fatalf("%s %v", deps, err)
	}
	linked := strings.ReplaceAll(string(deps), "/herald/internal/operator/config\n", "\n") // the settings
	heraldtest.Lacks(t, "what enqueue links", linked, "herald/internal/delivery", "herald/internal/mcpcall", "herald/internal/auth/oauth", "herald/internal/auth", "herald/internal/resolver",
		"herald/internal/door/server", "herald/internal/operator", "mcp-go", "boxo", "asynqmon", "prometheus")
}
