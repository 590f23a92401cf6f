package doctest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

var deliveryID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// The build, which may compile everything, and the test itself have separate time limits for a busy machine.
const (
	buildTime   = 15 * time.Minute
	wholeTime   = 10 * time.Minute
	pollStories = 250 * time.Millisecond
)

// world is the environment in which the pages' commands run.
type world struct {
	root string // of the repository
	dir  string // contains bin/; the pages' commands run in it
	env  []string

	rpc, gateway string       // addresses: the demo's chain and IPFS
	oldDatabase  string       // a database with the old backend's tables
	registries   string       // variables with the addresses of the demo's registries
	agent        string       // the endpoint of the demo's first agent
	document     string       // ipfs://… --hash 0x…
	stories      func() error // waits until the demo's stories have ended
	jobs         atomic.Int64 // number of jobs enqueued so far, for deliveries to look at
	ran          atomic.Int64 // number of commands run
}

// services are the reader's own, as a page assumes them.
type services struct {
	database, redis string
	redisCLI        string // a command that connects to redis
}

// session runs a page's commands: those beside the demo, or those with services of the reader's own.
type session struct {
	*world
	services
	with   string // block.with of its blocks
	data   string // the worker's folder below dir
	free   string // the address of an unused port
	listen string // where its worker listens

	agentName string // the agent that the page's commands name
}

// afterStories are the pages whose commands give feedback, which a reorg of the stories could remove, or replay what
// failed, which must not change between the selection and the replay.
var afterStories = []string{"docs/indexer.md", "docs/operator/troubleshooting.md"}

// firstAgent is the agent of the demo's first story. ownAgents are the agents of pages that change an agent's
// credentials, because other pages call the first agent at the same time.
const firstAgent = "31337:0"

var ownAgents = map[string]string{"docs/operator/tokens-and-keys.md": "31337:901"}

// demoChain is the demo's chain.
const demoChain = 31337

// TestCommands runs the commands of README.md and of the pages below docs, a subtest for each page. The demo's blocks
// run first, because other blocks of the page use their files.
func TestCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), wholeTime)
	t.Cleanup(cancel) // after the subtests, which run when this function has returned
	ctx = w.startDemo(ctx, t)
	w.stories = sync.OnceValue(func() error { return w.awaitStories(ctx) }) // each look at them is a process
	pages, err := listPages(os.DirFS(w.root))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, name := range append(pages, "README.md") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w.runPage(ctx, t, name)
		})
	}
	t.Cleanup(func() {
		if n := w.ran.Load(); n < 40 && !t.Failed() {
			t.Errorf("only %d commands were run: are the blocks still found?", n)
		}
	})
}

// runPage runs the commands of one page.
func (w *world) runPage(ctx context.Context, t *testing.T, name string) {
	raw, err := os.ReadFile(filepath.Join(w.root, name))
	heraldtest.Must(t, err)
	blocks, faults := parsePage(string(raw))
	for _, fault := range faults {
		t.Errorf("%s: %v", name, fault)
	}
	groups := groupBlocks(blocks)
	for _, with := range []string{"", ownServices} {
		if groups[with] == nil {
			continue
		}
		s := &session{world: w, with: with, data: "own-" + filepath.Base(name), free: heraldtest.Address(t),
			listen: heraldtest.Address(t), agentName: cmp.Or(ownAgents[name], firstAgent)}
		if with == ownServices {
			s.services = newServices(t)
		}
		s.runBlocks(ctx, t, name, groups[with])
	}
}

// groupBlocks groups blocks by the services that they need.
func groupBlocks(blocks []block) map[string][]block {
	by := map[string][]block{}
	for _, b := range blocks {
		by[b.with] = append(by[b.with], b)
	}
	return by
}

// newWorld builds the programs and creates the files that the pages expect.
func newWorld(t *testing.T) *world {
	t.Helper()
	must := func(err error) {
		t.Helper()
		heraldtest.Must(t, err)
	}
	w := &world{}
	var err error
	w.root, err = filepath.Abs(filepath.Join("..", "..", ".."))
	must(err)
	// The demo's servers may run as another user, so that t.TempDir is not accessible to them.
	w.dir, err = os.MkdirTemp("", "herald-doctest-")
	must(err)
	t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	must(os.Chmod(w.dir, 0o711))
	ctx, cancel := context.WithTimeout(t.Context(), buildTime)
	defer cancel()
	built := make(chan error, 1)
	go func() {
		_, err := trial.Build(ctx, w.root, filepath.Join(w.dir, "bin"), "./cmd/demo", "./examples/agent")
		built <- err
	}()
	w.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "TMPDIR=" + os.TempDir()}
	if cache := os.Getenv("HERALD_CACHE"); cache != "" {
		w.env = append(w.env, "HERALD_CACHE="+cache)
	}
	err = errors.Join(w.writeFiles(), w.makeOldBackend(ctx, heraldtest.EmptyPostgres(t)))
	must(errors.Join(err, <-built))
	return w
}

// newServices starts a reader's own services, and looks for a client of Redis.
func newServices(t *testing.T) services {
	t.Helper()
	s := services{database: heraldtest.EmptyPostgres(t), redis: heraldtest.Redis(t)}
	path, env, err := trial.FindRedisCLI()
	if err != nil {
		return s // the blocks that need it are skipped
	}
	s.redisCLI = strings.Join(append(env, path), " ")
	if socket, ok := strings.CutPrefix(s.redis, "redis-socket://"); ok {
		s.redisCLI += " -s '" + strings.SplitN(socket, "?", 2)[0] + "'"
	} else {
		s.redisCLI += " --no-auth-warning -u '" + s.redis + "'"
	}
	return s
}

// makeOldBackend fills a database like the old backend's.
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
	_, err = conn.Exec(ctx, string(script))
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
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

// startDemo runs the demo, README's first command, on a free port. The returned context ends with the demo.
func (w *world) startDemo(ctx context.Context, t *testing.T) context.Context {
	t.Helper()
	log := filepath.Join(w.dir, "demo.log")
	demo, err := trial.Program{Name: "demo", Path: filepath.Join(w.dir, "bin", "demo"), Args: []string{"--listen", "127.0.0.1:0"},
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
	ctx, stop := context.WithCancelCause(ctx)
	t.Cleanup(func() { stop(nil) })
	go func() {
		select {
		case <-demo.Done():
			stop(errors.New("the demo has ended"))
		case <-ctx.Done():
		}
	}()
	err = trial.Until(ctx, 50*time.Millisecond, "the demo", func() (bool, error) {
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
	return ctx
}

// lookAround reads the values of the demo that replace the pages' placeholders.
func (w *world) lookAround(ctx context.Context) error {
	s, err := (&session{world: w}).openShell()
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
	err = trial.Until(ctx, pollStories, "the first story", func() (bool, error) {
		_, said, err := s.run("bin/worker delivery list --agent " + firstAgent + " --status delivered --json")
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

// awaitStories waits until the demo's stories have ended, but for the third, which takes longest: its agent asks to be
// called again in 15 s.
func (w *world) awaitStories(ctx context.Context) error {
	s, err := (&session{world: w}).openShell()
	if err != nil {
		return err
	}
	defer func() { _ = s.close() }()
	return trial.Until(ctx, pollStories, "the stories to end", func() (bool, error) {
		said, err := s.must("bin/worker delivery list --limit 100 --json")
		if err != nil {
			return false, err
		}
		var page operator.DeliveryPage
		err = json.Unmarshal([]byte(said), &page)
		ended := map[string]int{} // by agent
		for _, d := range page.Deliveries {
			if d.ChainID == demoChain && (d.Status.Final() || d.Status == outcome.Waiting && d.AgentID == "2" && d.Attempts == 2) {
				ended[d.AgentID]++
			}
		}
		for agent := range 7 {
			if ended[strconv.Itoa(agent)] == 0 {
				return false, err
			}
		}
		return ended["6"] == 2, err // it receives a retraction too
	})
}

// openShell starts the session's shell.
func (s *session) openShell() (*shell, error) {
	env := slices.Clone(s.env)
	if s.with == ownServices {
		// The doctor asks the gateways, and no test may use the public ones.
		env = append(env, "HERALD_LISTEN="+s.listen, "HERALD_DATA="+filepath.Join(s.dir, s.data), "IPFS_GATEWAYS="+s.gateway,
			"HERALD_ALLOW_NETWORKS=127.0.0.0/8")
		return startShell(s.dir, s.root, s.listen, env)
	}
	sh, err := startShell(s.dir, s.root, "", env)
	if err != nil {
		return nil, err
	}
	if _, err := sh.must(". bin/demo.env"); err != nil {
		return nil, errors.Join(err, sh.close())
	}
	return sh, nil
}

// runBlocks runs the commands of a page's blocks, and reports their count and faults.
func (s *session) runBlocks(ctx context.Context, t *testing.T, page string, blocks []block) {
	began := time.Now()
	if slices.Contains(afterStories, page) && s.with == "" {
		if err := s.stories(); err != nil {
			t.Error(err)
		}
	}
	// README's commands run as they stand, with the demo alone.
	asItStands := page == "README.md"
	sh, err := s.openShell()
	if err == nil && s.with == "" && !asItStands && usesDelivery(blocks) {
		err = s.offerDelivery(sh)
	}
	if err != nil {
		t.Errorf("%s: %v", page, err)
		return
	}
	defer func() { _ = sh.close() }()
	did := tally{skipped: map[string]int{}}
	for _, b := range blocks {
		if b.skip != "" {
			did.skipped[b.skip] += len(b.commands)
			continue
		}
		for _, c := range b.commands {
			did.ran++
			if err := s.runCommand(ctx, sh, c, asItStands); err != nil {
				t.Errorf("%s: line %d: %s: %v", page, c.line, c.text, err)
			}
		}
	}
	t.Logf("%s: %s, in %.1f s", page, did, time.Since(began).Seconds())
	s.ran.Add(int64(did.ran))
}

func (s *session) runCommand(ctx context.Context, sh *shell, c command, asItStands bool) error {
	text, err := s.substitute(c.text)
	if err != nil {
		return err
	}
	if asItStands && text != c.text {
		return errors.New("this page's commands run as they stand: nothing is put in for what it names")
	}
	c.text = text
	return sh.perform(ctx, c)
}

// usesDelivery reports whether a command of the blocks contains $ID, the variable that offerDelivery sets.
func usesDelivery(blocks []block) bool {
	return slices.ContainsFunc(blocks, func(b block) bool {
		return slices.ContainsFunc(b.commands, func(c command) bool { return strings.Contains(c.text, "$ID") })
	})
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
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	heraldtest.Must(t, err)
	for _, c := range []struct{ name, commands, want string }{
		{"all well", "export A=1\n[ \"$A\" = 1 ]\nsh -c 'exit 3'   # refused (exit 3)\nmake test ARGS=--once", ""},
		{"a failing command", "sh -c 'echo sorry; exit 7'", "sorry"},
		{"another status than told", "true   # (exit 3)", "not with 3"},
		{"a program that is not there", "bin/worcker doctor", "127"},
		{"a target that is not there", "make tset", "tset"},
		{"a placeholder", "curl https://…", "nothing stands for"},
		{"a name in brackets", "bin/worker delivery show <id>", "nothing stands for"},
		{"a second worker", "bin/worker", "beside the demo"},
		{"what would read the commands to come", "cat", ""},
		{"a stream", "while echo event; do sleep 1; done   # until Ctrl-C", ""},
		// The output appears after the shell has noticed that the command ended.
		{"a stream that ends", "sh -c 'p=$$; (while kill -0 $p; do :; done; echo event) 2>/dev/null &'   # until Ctrl-C", "kill"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := startShell(t.TempDir(), root, "", os.Environ())
			heraldtest.Must(t, err)
			t.Cleanup(func() { _ = s.close() })
			session := &session{world: &world{}}
			var said []string
			for _, command := range splitCommands(strings.Split(c.commands, "\n"), 1) {
				if err := session.runCommand(t.Context(), s, command, false); err != nil {
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
