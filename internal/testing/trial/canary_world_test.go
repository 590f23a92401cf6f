package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/trial/canary"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// canaryTime bounds the whole test on a busy machine. On an idle one it takes ten seconds.
const canaryTime = 6 * time.Minute

// canaryWorld is a complete Herald with secrets in every place where operators and enqueuers put them, and everything
// of it that others could see.
type canaryWorld struct {
	*Site
	t        *testing.T
	ctx      context.Context
	dir      string // the test's folder
	postgres *Postgres
	worker   *Worker

	// control is a word that is not secret and is planted next to the secrets, so that a search without a finding
	// proves something.
	control string
	api     string   // HERALD_API_TOKEN
	servers string   // contents of the servers file
	lines   []string // jobs that flush enqueues

	mu      sync.Mutex // while several credentials are stored at once
	secrets []canary.Secret
	seen    []sight
}

// sight is something that others can see.
type sight struct {
	group string // at least one sight of the group must contain the control
	place string
	data  []byte
	but   []string // names of secrets that are allowed there
}

// secret returns a new random secret and adds it to the secrets.
func (w *canaryWorld) secret(name, special string) string {
	text := canary.Token(special)
	w.keep(name, text)
	return text
}

// keep adds a secret that another program made.
func (w *canaryWorld) keep(name, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.ContainsFunc(w.secrets, func(s canary.Secret) bool { return s.Text == text }) {
		w.secrets = append(w.secrets, canary.Secret{Name: name, Text: text})
	}
}

func (w *canaryWorld) see(group, place string, data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, sight{group: group, place: place, data: data})
}

func (w *canaryWorld) must(err error) {
	w.t.Helper()
	heraldtest.Must(w.t, err)
}

// newCanaryWorld starts Postgres and Redis, each with a password in the worker's URL. The worker is started later.
func newCanaryWorld(t *testing.T) *canaryWorld {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), canaryTime)
	t.Cleanup(cancel)
	// The servers' users need access, and a socket's path must be short, so t.TempDir is not suitable.
	dir, err := os.MkdirTemp("", "herald-canary-")
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &canaryWorld{t: t, ctx: ctx, dir: dir, control: "Control" + canary.Random(20)}
	built := make(chan Programs, 1)
	go func() { defer close(built); built <- shared.Programs(t) }() // while Postgres starts
	w.startPostgres()
	programs, ok := <-built
	if !ok {
		t.FailNow() // Programs has said why
	}
	w.Site, err = Open(ctx, Config{Programs: programs, Postgres: w.postgres, Database: "canary", Logs: filepath.Join(dir, "logs")})
	heraldtest.MustHave(t, err)
	t.Cleanup(func() { heraldtest.Must(t, w.Close()) })
	w.keepKeyset()
	w.guardServices()
	return w
}

func (w *canaryWorld) startPostgres() {
	w.t.Helper()
	log, err := os.Create(filepath.Join(w.dir, "postgres.log"))
	w.must(err)
	w.postgres = &Postgres{dir: w.dir, test: true, log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		w.must(errors.Join(w.postgres.Close(ctx), log.Close()))
	})
	heraldtest.MustHave(w.t, w.postgres.Start(w.ctx))
}

// guardServices adds passwords to the worker's URLs. Redis requires its own. Postgres' socket admits every user and
// ignores the password.
func (w *canaryWorld) guardServices() {
	w.t.Helper()
	password := w.secret("the password of Redis", "-")
	w.must(w.Redis.Client().ConfigSet(w.ctx, "requirepass", password).Err())
	w.must(w.Redis.Client().Close())
	u, err := url.Parse(w.Redis.URL())
	w.must(err)
	w.Redis.client = redis.NewClient(&redis.Options{Network: "unix", Addr: u.Path, Password: password, ContextTimeoutEnabled: true})
	u.User = url.UserPassword("", password)
	redisURL := u.String()
	u, err = url.Parse(w.Site.address)
	w.must(err)
	u.User = url.UserPassword(u.User.Username(), w.secret("the password of Postgres", "-"))
	w.Site.Env = append(w.Site.Env, "REDIS_URL="+redisURL, "DATABASE_URL="+u.String())
}

// run runs one of the worker's commands with stdin, inspects the process while it runs, and keeps its output. The
// command may fail.
func (w *canaryWorld) run(stdin string, args ...string) string {
	w.t.Helper()
	return w.runWith(stdin, nil, args...)
}

func (w *canaryWorld) runWith(stdin string, env []string, args ...string) string {
	w.t.Helper()
	return w.startCommand(stdin, env, args...)()
}

// startCommand returns a function that waits for the command's end and returns its output.
func (w *canaryWorld) startCommand(stdin string, env []string, args ...string) func() string {
	w.t.Helper()
	var out bytes.Buffer
	in, feed, err := os.Pipe()
	w.must(err)
	p, err := w.start(Program{Name: "command-" + args[0], Path: w.Programs.worker(), Args: args, Env: w.environment(env...), In: in, out: &out})
	_ = in.Close()
	w.must(err)
	if stdin != "" {
		w.lookAtProcesses() // it waits for its stdin
		_, err = feed.WriteString(stdin)
		w.must(err)
	}
	w.must(feed.Close())
	return func() string {
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		err := p.Wait(ctx)
		w.must(ctx.Err())
		w.see("commands", "worker "+strings.Join(args, " "), slices.Concat(out.Bytes(), []byte(fmt.Sprint(err))))
		return out.String()
	}
}

// enqueue passes lines to the enqueue program. All of them must be accepted.
func (w *canaryWorld) enqueue(lines ...string) []uuid.UUID {
	w.t.Helper()
	accepted, known, err := w.Site.Enqueue(w.ctx, strings.NewReader(strings.Join(lines, "")))
	w.must(err)
	if len(known) > 0 || len(accepted) != len(lines) {
		w.t.Fatalf("of %d jobs %d were accepted and %d known", len(lines), len(accepted), len(known))
	}
	return accepted
}

// file writes a file of the operator and returns its path.
func (w *canaryWorld) file(name, text string) string {
	w.t.Helper()
	folder := filepath.Join(w.dir, "operator")
	w.must(os.MkdirAll(folder, 0o700))
	path := filepath.Join(folder, name)
	w.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// files adds every file below a folder to the sights.
func (w *canaryWorld) files(group, folder string, but ...string) {
	w.t.Helper()
	w.must(filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a file of a running server
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		w.seen = append(w.seen, sight{group, path, data, but})
		return err
	}))
}

// search searches for every secret in all sights, and for the control in each group.
func (w *canaryWorld) search(groups ...string) {
	w.t.Helper()
	needles, err := canary.NewNeedles(w.secrets...)
	w.must(err)
	control, err := canary.NewNeedles(canary.Secret{Name: "the control", Text: w.control})
	w.must(err)
	metric, err := canary.NewNeedles(canary.Secret{Name: "a metric", Text: "herald_deliveries_total"}) // no text of strangers gets in there
	w.must(err)
	searched, planted := map[string]int{}, map[string]bool{}
	found := map[[2]string]int{} // by group and secret: one finding of each is enough
	for _, s := range w.seen {
		searched[s.group] += len(s.data)
		sign := control
		if s.group == "metrics" {
			sign = metric
		}
		planted[s.group] = planted[s.group] || len(sign.Search(s.place, s.data)) > 0
		for _, f := range needles.Search(s.place, s.data) {
			if slices.Contains(s.but, f.Secret) {
				continue
			}
			if found[[2]string{s.group, f.Secret}]++; found[[2]string{s.group, f.Secret}] == 1 {
				w.t.Errorf("%s: %v", s.group, f)
			}
		}
	}
	for what, n := range found {
		if n > 1 {
			w.t.Errorf("%s: %s is in %d places", what[0], what[1], n)
		}
	}
	for _, g := range groups {
		if !planted[g] {
			w.t.Errorf("the control is not found in %s (%d bytes): that search proves nothing", g, searched[g])
		}
	}
	w.t.Logf("%d secrets, searched: %v bytes", len(w.secrets), searched)
}
