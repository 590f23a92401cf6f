package doctest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/trial"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

var deliveryID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// The build, which may compile everything, and the test itself have separate time limits for a busy machine.
const (
	buildTime = 15 * time.Minute
	wholeTime = 10 * time.Minute
)

// world is the environment in which the pages' commands run.
type world struct {
	root string // of the repository
	dir  string // contains bin/; the pages' commands run in it
	env  []string

	rpc, gateway    string       // addresses: the demo's chain and IPFS
	free, apartPort string       // unused ports
	database, redis string       // the reader's own services
	oldDatabase     string       // a database with the old backend's tables
	redisCLI        string       // a command that connects to redis
	registries      string       // variables with the addresses of the demo's registries
	agent           string       // the endpoint of the demo's first agent
	document        string       // ipfs://… --hash 0x…
	jobs            atomic.Int64 // number of jobs enqueued so far, for deliveries to look at
	ran             atomic.Int64 // number of commands run
}

// The test runs these pages while the demo plays its stories. The pages of apartPages have services of their own. They
// run at the same time as those of earlyPages.
var (
	apartPages = []string{"docs/contributing/development.md", "docs/operator/old-backend.md"}
	earlyPages = []string{"README.md", "docs/agent.md", "docs/indexer.md"}
)

// TestCommands runs the commands of README.md and of the pages below docs.
func TestCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), wholeTime)
	defer cancel()
	w.startDemo(ctx, t)
	pages, err := listPages(os.DirFS(w.root))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	pages = slices.DeleteFunc(pages, func(p string) bool { return slices.Contains(apartPages, p) || slices.Contains(earlyPages, p) })
	var apart sync.WaitGroup
	apart.Go(func() { w.runPages(ctx, t, apartPages) })
	w.runPages(ctx, t, earlyPages)
	apart.Wait()
	heraldtest.Must(t, w.awaitStories(ctx))
	w.runPages(ctx, t, pages)
	if n := w.ran.Load(); n < 40 {
		t.Errorf("only %d commands were run: are the blocks still found?", n)
	}
}

// runPages runs the commands of pages and reports their faults.
func (w *world) runPages(ctx context.Context, t *testing.T, pages []string) {
	for _, name := range pages {
		raw, err := os.ReadFile(filepath.Join(w.root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		did, faults := w.runPage(ctx, string(raw), name == "README.md")
		for _, fault := range faults {
			t.Errorf("%s: %v", name, fault)
		}
		t.Logf("%s: %s", name, did)
		w.ran.Add(int64(did.ran))
	}
}

// newWorld builds the programs and creates the files that the pages expect.
func newWorld(t *testing.T) *world {
	t.Helper()
	must := func(err error) {
		t.Helper()
		heraldtest.Must(t, err)
	}
	w := &world{database: heraldtest.EmptyPostgres(t), redis: heraldtest.Redis(t), free: heraldtest.Address(t), apartPort: heraldtest.Address(t)}
	var err error
	w.root, err = filepath.Abs(filepath.Join("..", ".."))
	must(err)
	// The demo's servers may run as another user, so that t.TempDir is not accessible to them.
	w.dir, err = os.MkdirTemp("", "herald-doctest-")
	must(err)
	t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	must(os.Chmod(w.dir, 0o711))
	ctx, cancel := context.WithTimeout(t.Context(), buildTime)
	defer cancel()
	_, err = trial.Build(ctx, w.root, filepath.Join(w.dir, "bin"), "./cmd/demo", "./examples/agent")
	must(err)
	w.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "TMPDIR=" + os.TempDir()}
	if cache := os.Getenv("HERALD_CACHE"); cache != "" {
		w.env = append(w.env, "HERALD_CACHE="+cache)
	}
	must(w.writeFiles())
	must(w.makeOldBackend(ctx, heraldtest.EmptyPostgres(t)))
	return w
}

// makeOldBackend creates a database like the old backend's, and looks for a client of its Redis.
func (w *world) makeOldBackend(ctx context.Context, database string) error {
	w.oldDatabase = database
	script, err := os.ReadFile(filepath.Join("testdata", "old-backend.sql"))
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err = conn.Exec(ctx, string(script)); err != nil {
		return err
	}
	path, env, err := trial.FindRedisCLI()
	if err != nil {
		return nil // the blocks that need it are skipped
	}
	w.redisCLI = strings.Join(append(env, path), " ")
	if socket, ok := strings.CutPrefix(w.redis, "redis-socket://"); ok {
		w.redisCLI += " -s '" + strings.SplitN(socket, "?", 2)[0] + "'"
	} else {
		w.redisCLI += " --no-auth-warning -u '" + w.redis + "'"
	}
	return nil
}

// writeFiles creates the files that the pages name.
func (w *world) writeFiles() error {
	for name, text := range map[string]string{
		"token.txt": "a-token\n", "key.txt": "a-key\n", "jobs.jsonl": w.job() + "\n" + w.job() + "\n",
		"feedback.json": `{"value": 100, "text": "Good."}` + "\n",
	} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// job returns a job of a chain without an RPC URL, so its delivery is held.
func (w *world) job() string {
	number := w.jobs.Add(1)
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":1,"agentId":"7","clientAddress":"0x1111111111111111111111111111111111111111",`+
		`"feedbackIndex":%d,"value":"1","valueDecimals":0}`, number)
}

// startDemo runs the demo, README's first command, on a free port.
func (w *world) startDemo(ctx context.Context, t *testing.T) {
	t.Helper()
	log := filepath.Join(w.dir, "demo.log")
	demo, err := trial.Foreign{Name: "demo", Path: filepath.Join(w.dir, "bin", "demo"), Args: []string{"--listen", "127.0.0.1:0"},
		Env: w.env, Log: log}.Start()
	heraldtest.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := demo.Terminate(ctx); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(w.dir, "bin", "demo.env")); err == nil {
			t.Error("the demo left its demo.env behind")
		}
	})
	envFile := filepath.Join(w.dir, "bin", "demo.env")
	err = trial.Until(ctx, 50*time.Millisecond, "the demo", func() (bool, error) {
		select {
		case <-demo.Done():
			return false, errors.New("it has ended")
		default:
		}
		_, err := os.Stat(envFile)
		return err == nil, err
	})
	if err == nil {
		err = w.lookAround(ctx)
	}
	if err != nil {
		said, _ := os.ReadFile(log)
		t.Fatalf("%v\n%s", err, said)
	}
}

// lookAround reads the values of the demo that replace the pages' placeholders.
func (w *world) lookAround(ctx context.Context) error {
	s, err := w.openShell("")
	if err != nil {
		return err
	}
	defer func() { _ = s.close() }()
	if w.rpc, err = s.must(`printf %s "$RPC_URL_31337"`); err != nil {
		return err
	}
	if w.registries, err = s.must("env | grep -E '^(IDENTITY|REPUTATION)_REGISTRY_31337=' | tr '\\n' ' '"); err != nil {
		return err
	}
	if w.gateway, err = s.must(`printf %s "$IPFS_GATEWAYS"`); err != nil {
		return err
	}
	var id string
	err = trial.Until(ctx, time.Second, "the first story", func() (bool, error) {
		_, said, err := s.run("bin/worker delivery list --agent 31337:0 --status delivered --json")
		id = deliveryID.FindString(said)
		return err != nil || id != "", nil
	})
	if err != nil {
		return err
	}
	said, err := s.must("bin/worker delivery show --json " + id)
	if err != nil {
		return err
	}
	var shown struct {
		Endpoint string
		Job      struct {
			FeedbackURI  string
			FeedbackHash common.Hash
		}
	}
	if err := json.Unmarshal([]byte(said), &shown); err != nil {
		return fmt.Errorf("delivery show --json: %w", err)
	}
	w.agent = shown.Endpoint
	w.document = fmt.Sprintf("%s --hash %s", shown.Job.FeedbackURI, shown.Job.FeedbackHash)
	return ctx.Err()
}

// awaitStories waits until the demo's stories have ended. The third one takes longest. A delivery that still waits could
// be delivered between two commands of a page.
func (w *world) awaitStories(ctx context.Context) error {
	s, err := w.openShell("")
	if err != nil {
		return err
	}
	defer func() { _ = s.close() }()
	return trial.Until(ctx, time.Second, "the stories to end", func() (bool, error) {
		_, said, err := s.run("bin/worker delivery list --agent 31337:2 --status delivered --json")
		return deliveryID.MatchString(said), err
	})
}

// openShell starts a shell with the services that a block needs.
func (w *world) openShell(with string) (*shell, error) {
	env := slices.Clone(w.env)
	if with == ownServices {
		// The doctor asks the gateways, and no test may use the public ones.
		env = append(env, "HERALD_LISTEN="+w.free, "HERALD_DATA="+filepath.Join(w.dir, "own"), "IPFS_GATEWAYS="+w.gateway,
			"HERALD_ALLOW_NETWORKS=127.0.0.0/8")
		return startShell(w.dir, w.root, w.free, env)
	}
	s, err := startShell(w.dir, w.root, "", env)
	if err != nil {
		return nil, err
	}
	if _, err := s.must(". bin/demo.env"); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// runPage runs a page's commands and returns their counts. With asItStands nothing is substituted, so that the page
// must work with the demo alone.
func (w *world) runPage(ctx context.Context, page string, asItStands bool) (tally, []error) {
	did := newTally()
	blocks, faults := parsePage(page)
	shells := map[string]*shell{}
	defer func() {
		for _, s := range shells {
			_ = s.close()
		}
	}()
	for _, b := range blocks {
		if b.skip != "" {
			did.skipped[b.skip] += len(b.commands)
			continue
		}
		if shells[b.with] == nil {
			s, err := w.openShell(b.with)
			if err == nil && b.with == "" && !asItStands {
				err = w.offerDelivery(s)
			}
			if err != nil {
				return did, append(faults, err)
			}
			shells[b.with] = s
		}
		for _, c := range b.commands {
			did.ran++
			if err := w.runCommand(ctx, shells[b.with], c, asItStands); err != nil {
				faults = append(faults, fmt.Errorf("line %d: %s: %w", c.line, c.text, err))
			}
		}
	}
	return did, faults
}

func (w *world) runCommand(ctx context.Context, s *shell, c command, asItStands bool) error {
	text, err := w.substitute(c.text)
	if err != nil {
		return err
	}
	if asItStands && text != c.text {
		return errors.New("this page's commands run as they stand: nothing is put in for what it names")
	}
	c.text = text
	return s.perform(ctx, c)
}

// offerDelivery sets the shell's variable ID to a held delivery, which can be shown, replayed and cancelled.
func (w *world) offerDelivery(s *shell) error {
	_, err := s.must("ID=$(echo '" + w.job() + `' | bin/enqueue | sed -n 's/^accepted \([^ ]*\).*/\1/p'); [ -n "$ID" ]`)
	return err
}

// tally counts commands.
type tally struct {
	ran     int
	skipped map[string]int // by reason
}

func newTally() tally { return tally{skipped: map[string]int{}} }

func (a tally) String() string {
	text := []string{fmt.Sprintf("%d commands run", a.ran)}
	for _, reason := range slices.Sorted(maps.Keys(a.skipped)) {
		text = append(text, fmt.Sprintf("%d not run: %s", a.skipped[reason], reason))
	}
	return strings.Join(text, "; ")
}

// TestFaultsAreFound checks that TestCommands reports pages with faults. It needs no services.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	heraldtest.Must(t, err)
	for _, c := range []struct{ name, commands, want string }{
		{"all well", "export A=1\n[ \"$A\" = 1 ]\nsh -c 'exit 3'   # refused (exit 3)\nmake test ARGS=--once", ""},
		{"a failing command", "sh -c 'echo sorry; exit 7'", "sorry"},
		{"another status than told", "true   # (exit 3)", "not with 3"},
		{"a program that is not there", "bin/worcker doctor", "127"},
		{"a target that is not there", "make tset", "tset"},
		{"a placeholder", "curl https://…", "nothing stands for"},
		{"a second worker", "bin/worker", "beside the demo"},
		{"what would read the commands to come", "cat", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := startShell(t.TempDir(), root, "", os.Environ())
			heraldtest.Must(t, err)
			t.Cleanup(func() { _ = s.close() })
			w := &world{}
			var said []string
			for _, command := range splitCommands(strings.Split(c.commands, "\n"), 1) {
				if err := w.runCommand(t.Context(), s, command, false); err != nil {
					said = append(said, err.Error())
				}
			}
			got := strings.Join(said, "\n")
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestShellEnds: background jobs of a page end with its shell.
func TestShellEnds(t *testing.T) {
	t.Parallel()
	s, err := startShell(t.TempDir(), ".", "", os.Environ())
	heraldtest.Must(t, err)
	said, err := s.must("sleep 1000 & echo $!")
	heraldtest.Must(t, err)
	var pid int
	if _, err := fmt.Sscan(said, &pid); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	err = poll(t.Context(), "the job to end", func(context.Context) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	if err != nil {
		t.Error(err)
	}
}
