package servers

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// watched is a Set with the test's own file.
type watched struct {
	*Set
	t     testing.TB
	path  string
	log   *bytes.Buffer
	diffs []Diff
}

func watch(t testing.TB, content string) *watched {
	t.Helper()
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "servers.json"), log: &bytes.Buffer{}}
	w.write(content)
	w.open()
	return w
}

func (w *watched) open() {
	w.t.Helper()
	var err error
	w.Set, err = Open(Config{Path: w.path, Env: environment, Logger: slog.New(slog.NewTextHandler(w.log, nil)), Changed: func(d Diff) { w.diffs = append(w.diffs, d) }})
	heraldtest.Must(w.t, err)
}

func (w *watched) write(content string) {
	w.t.Helper()
	heraldtest.Must(w.t, os.WriteFile(w.path, []byte(content), 0o600))
}

// look checks the file once and returns the log lines.
func (w *watched) look() string {
	w.log.Reset()
	w.ReloadIfChanged()
	return w.log.String()
}

func (w *watched) has(agents ...string) {
	w.t.Helper()
	heraldtest.Equal(w.t, "in force", fmt.Sprint(w.Content().Keys()), fmt.Sprint(agents))
}

func TestReload(t *testing.T) {
	t.Parallel()
	w := watch(t, `{"servers": {"1:1": {"url": "https://a.example", "auth": {"type": "bearer", "token": "${TOKEN}"}}, "1:2": {"command": "x"}, "1:3": {}}}`)
	w.has("1:1", "1:2", "1:3")
	for range 3 {
		heraldtest.Equal(t, "what is said without a change", w.look(), "")
		heraldtest.Equal(t, "diffs without a change", len(w.diffs), 0)
	}
	w.write(`{"servers": {"1:1": {"url": "https://a.example", "auth": {"type": "bearer", "token": "other${TOKEN}"}, "timeoutMs": 2000}, "1:3": {}, "2:1": {"enabled": false}}}`)
	said := w.look()
	w.has("1:1", "1:3", "2:1")
	for _, want := range []string{`added=[2:1]`, `removed=[1:2]`, `changed="[1:1 (headers, timeoutMs)]"`, "servers=3"} {
		heraldtest.Contains(t, "the log", said, want)
	}
	heraldtest.Lacks(t, "the log", said, "hunter2")
	if len(w.diffs) != 1 {
		t.Fatalf("%v", w.diffs)
	}
	d := w.diffs[0]
	if len(d.ListDroppedEndpoints()) != 2 || d.ListDroppedEndpoints()[0].Command != "x" || d.ListDroppedEndpoints()[1].Headers["Authorization"].Reveal() != "Bearer hunter2hunter2" {
		t.Errorf("%+v", d.ListDroppedEndpoints())
	}
	if s, ok := w.Lookup(1, "1"); !ok || s.Timeout != 2*time.Second {
		t.Errorf("%+v, %v", s, ok)
	}
	// Changes that do not concern the endpoint drop nothing, and changed white space has no effect.
	w.write(`{"servers": {"1:1": {"url": "https://a.example", "auth": {"type": "bearer", "token": "other${TOKEN}"}}, "1:3": {}, "2:1": {"enabled": false}}}`)
	w.look()
	if len(w.diffs) != 2 || len(w.diffs[1].ListDroppedEndpoints()) != 0 || w.diffs[1].Changed[0].String() != "1:1 (timeoutMs)" {
		t.Errorf("%+v", w.diffs)
	}
	w.write(`{"servers": {"1:1": {"headers": {"authorization": "Bearer other${TOKEN}"}, "url": "https://a.example"}, "1:3": {"enabled": true}, "2:1": {"enabled": false}} }`)
	heraldtest.Equal(t, "what is said", w.look(), "")
	heraldtest.Equal(t, "diffs", len(w.diffs), 2)
}

// TestSecretMovedToEnvironment checks that a secret that was moved from the file into the environment is no longer
// shown, although the endpoint did not change.
func TestSecretMovedToEnvironment(t *testing.T) {
	t.Parallel()
	w := watch(t, `{"servers": {"1:1": {"url": "https://a.example/hunter2hunter2"}, "1:2": {"command": "hunter2hunter2"}, "1:3": {"command": "x", "args": ["hunter2hunter2"]}}}`)
	w.write(`{"servers": {"1:1": {"url": "https://a.example/${TOKEN}"}, "1:2": {"command": "${TOKEN}"}, "1:3": {"command": "x", "args": ["hunter2hunter2"]}}}`)
	if said := w.look(); !strings.Contains(said, `changed="[1:1 (url) 1:2 (command)]"`) || strings.Contains(said, "hunter2") {
		t.Errorf("it says %s", said)
	}
	for id, want := range map[string]string{"1": "https://a.example/${TOKEN}", "2": "stdio:${TOKEN}"} {
		if s, _ := w.Lookup(1, id); s.Display != want {
			t.Errorf("1:%s is shown as %s", id, s.Display)
		}
	}
	if len(w.diffs) != 1 || len(w.diffs[0].ListDroppedEndpoints()) != 0 || len(w.diffs[0].ListMovedAgents()) != 0 {
		t.Errorf("%+v", w.diffs)
	}
	w.write(`{"servers": {"1:1": {"url": "https://a.example/${TOKEN}"}, "1:2": {"command": "${TOKEN}"}, "1:3": {"command": "x", "args": ["${TOKEN}"]}}}`)
	w.look()
	if s, _ := w.Lookup(1, "3"); len(s.endpoint.Secrets) != 1 || len(w.diffs) != 1 {
		t.Errorf("what is masked is still %d, %+v", len(s.endpoint.Secrets), w.diffs)
	}
}

// TestCalled checks that exactly those agents are listed that are now called at another address or with another command
// or header.
func TestCalled(t *testing.T) {
	t.Parallel()
	w := watch(t, `{"servers": {"1:1": {"url": "https://a.example"}, "1:2": {"url": "https://a.example"}, "1:3": {}, "1:4": {"url": "https://a.example"}, "1:5": {"command": "x"}}}`)
	w.write(`{"servers": {"1:1": {"url": "https://a.example", "headers": {"X-Key": "x"}}, "1:2": {"url": "https://a.example", "timeoutMs": 5000},
		"1:3": {"url": "https://a.example"}, "1:4": {}, "1:6": {"command": "x"}, "1:7": {}}}`)
	w.look()
	heraldtest.Equal(t, "w.diffs[0].ListMovedAgents()", fmt.Sprint(w.diffs[0].ListMovedAgents()), "[1:6 1:1 1:3]")
}

// TestBrokenFileChangesNothing checks that a broken or missing file changes nothing and is logged once.
func TestBrokenFileChangesNothing(t *testing.T) {
	t.Parallel()
	const good = `{"servers": {"1:1": {}}}`
	w := watch(t, good)
	for _, tt := range []struct {
		make func()
		want string
	}{
		{func() { w.write("{\n\"servers\": {\"1:1\": {\"url\": \"${MISSING}\"}}}") }, `servers.json:2: servers[\"1:1\"].url: names ${MISSING}`},
		{func() { w.write("{") }, "is not JSON"},
		{func() { _ = os.Remove(w.path) }, "cannot be read"},
	} {
		tt.make()
		if said := w.look(); !strings.Contains(said, tt.want) || !strings.Contains(said, "level=ERROR") {
			t.Errorf("it says %s, want %s", said, tt.want)
		}
		for range 3 {
			heraldtest.Equal(t, "it repeats", w.look(), "")
		}
		w.has("1:1")
	}
	w.write(good)
	heraldtest.Contains(t, "what is said", w.look(), "is valid again")
	heraldtest.Equal(t, "what is said", w.look(), "")
	heraldtest.Equal(t, "diffs", len(w.diffs), 0)
	w.write(`{"servers": {"1:2": {}}}`)
	w.look()
	w.has("1:2")
}

// TestSameMoment checks that two writes with the same timestamp are both detected.
func TestSameMoment(t *testing.T) {
	t.Parallel()
	w := watch(t, `{"servers": {"1:1": {}}}`)
	at := time.Now().Add(-time.Hour)
	set := func(content string) {
		w.write(content)
		heraldtest.Must(t, os.Chtimes(w.path, at, at))
	}
	set(`{"servers": {"1:2": {}}}`)
	w.look()
	w.has("1:2")
	set(`{"servers": {"1:3": {}}}`)
	w.look()
	w.has("1:3")
}

// TestKubernetes checks the way in which Kubernetes updates a volume: a symbolic link to a link is swapped, while the
// file's name, and possibly its size, stay the same.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(name, content string) {
		t.Helper()
		heraldtest.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		heraldtest.Must(t, os.WriteFile(filepath.Join(dir, name, "servers.json"), []byte(content), 0o600))
		tmp := filepath.Join(dir, "..data_tmp")
		heraldtest.Must(t, os.Symlink(name, tmp))
		heraldtest.Must(t, os.Rename(tmp, filepath.Join(dir, "..data")))
	}
	version("..1", `{"servers": {"1:1": {}}}`)
	w := &watched{t: t, path: filepath.Join(dir, "servers.json"), log: &bytes.Buffer{}}
	heraldtest.Must(t, os.Symlink("..data/servers.json", w.path))
	w.open()
	w.look()
	version("..2", `{"servers": {"1:2": {}}}`)
	w.look()
	w.has("1:2")
	heraldtest.Must(t, os.RemoveAll(filepath.Join(dir, "..1")))
	heraldtest.Equal(t, "it says", w.look(), "")
}

func TestOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	_, err := Open(Config{Path: path})
	heraldtest.Fails(t, "the error", err, "cannot be read: no such file")
	heraldtest.Must(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err = Open(Config{Path: path})
	heraldtest.Fails(t, "the error", err, "is not JSON")
	var none Set
	if _, ok := none.Lookup(1, "1"); ok || len(none.Content().Keys()) != 0 {
		t.Error("no file says something")
	}
}

// TestRun checks that concurrent readers see either the old or the new file, and that Run ends with its context.
func TestRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	write := func(agent string) {
		tmp := path + ".tmp"
		if err := os.WriteFile(tmp, []byte(`{"servers": {"1:`+agent+`": {"command": "`+agent+`"}}}`), 0o600); err != nil {
			t.Error(err)
		}
		if err := os.Rename(tmp, path); err != nil {
			t.Error(err)
		}
	}
	write("1")
	changed := make(chan Diff, 1)
	s, err := Open(Config{Path: path, Logger: slog.New(slog.DiscardHandler), Changed: func(d Diff) { changed <- d }})
	heraldtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				for _, id := range []string{"1", "2"} {
					if got, ok := s.Lookup(1, id); ok && got.Display != "stdio:"+id {
						t.Errorf("%s is %+v", id, got)
					}
				}
			}
		})
	}
	for i := range 20 {
		write(fmt.Sprint(1 + (i+1)%2))
		s.ReloadIfChanged()
		if d := <-changed; len(d.Added) != 1 || len(d.Removed) != 1 {
			t.Errorf("%+v", d)
		}
	}
	cancel()
	wg.Wait()
	s.Run(ctx)
}

func TestShownEndpoint(t *testing.T) {
	t.Parallel()
	list := make([]Change, maxShown+5)
	if got := formatChanges(list); len(got) != maxShown+1 || got[maxShown] != "…" {
		t.Errorf("%q", got)
	}
}
