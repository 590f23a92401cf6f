package app

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestServersFile checks that the servers file sets an agent's endpoint and can hold its deliveries. A changed file
// takes effect without a restart, a broken one does not.
func TestServersFile(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	a := openAgent(t)
	line := feedback(t, net, "https://127.0.0.1:1/nobody")
	path := filepath.Join(t.TempDir(), "servers.json")
	say := func(entry string) {
		t.Helper()
		write(t, path, fmt.Sprintf(`{"servers": {"%d:%s": %s, "99:1": {}}}`, net.ChainID(), agentOf(t, line), entry))
	}
	say(`{"url": "` + a.URL + `", "enabled": false}`)
	env := workerEnv(t, net, "HERALD_SERVERS_FILE="+path)
	looks := make(chan time.Time)
	look := func() { looks <- time.Now() }
	r := runWith(t, Options{ServersTicks: looks}, env...)
	w := r.up()
	id := accept(t, w, line)
	until(t, w.Store, id, func(d ledger.Delivery) bool { return d.Status == outcome.Held && d.Reason == "agent_disabled" })

	write(t, path, "{\n")
	look()
	heraldtest.AwaitState(t, func() bool { return strings.Contains(r.log.String(), "is invalid") }, func() string { return r.log.String() })
	say(`{"url": "` + a.URL + `"}`)
	look()
	if d := delivered(t, w.Store, id); d.Endpoint != a.URL || a.count() != 1 {
		t.Errorf("%+v, %d calls", d, a.count())
	}
	heraldtest.Must(t, r.stop())
	heraldtest.Contains(t, "the log", r.log.String(), "set IDENTITY_REGISTRY_99",
		fmt.Sprintf("%d:%s (enabled)", net.ChainID(), agentOf(t, line)))

	write(t, path, "{\n,")
	heraldtest.Fails(t, "the start", run(t, false, env...).wait(), "HERALD_SERVERS_FILE: "+path+":2: is not JSON")
}

// TestServersFileReleases checks that deliveries that are held because the agent refused the file's credential are
// delivered after the file was fixed, both while the worker runs and at its start.
func TestServersFileReleases(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	a := openAgent(t)
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("X-Api-Key"), "right") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		a.ServeHTTP(w, r)
	}))
	t.Cleanup(door.Close)
	first, second := feedback(t, net, "https://127.0.0.1:1/nobody"), feedback(t, net, "https://127.0.0.1:1/nobody")
	path := filepath.Join(t.TempDir(), "servers.json")
	key := func(line []byte, key string) string {
		t.Helper()
		return fmt.Sprintf(`"%d:%s": {"url": "%s", "auth": {"type": "header", "header": "X-Api-Key", "token": "%s"}}`,
			net.ChainID(), agentOf(t, line), door.URL, key)
	}
	say := func(entries ...string) {
		t.Helper()
		write(t, path, `{"servers": {`+strings.Join(entries, ",")+`}}`)
	}
	say(key(first, "wrong"), key(second, "wrong"))
	env := workerEnv(t, net, "HERALD_SERVERS_FILE="+path)
	looks := make(chan time.Time)
	look := func() { looks <- time.Now() }
	r := runWith(t, Options{ServersTicks: looks}, env...)
	w := r.up()
	held := func(id uuid.UUID, dispatch int) {
		t.Helper()
		until(t, w.Store, id, func(d ledger.Delivery) bool {
			return d.Status == outcome.Held && d.Dispatch >= dispatch && d.Reason == "auth_required" && strings.Contains(d.Error, "correct its auth or headers in the servers file")
		})
	}
	one, two := accept(t, w, first), accept(t, w, second)
	held(one, 1)
	held(two, 1)
	say(key(first, "no better"), key(second, "wrong"))
	look()
	held(one, 2)
	say(key(first, "right"), key(second, "wrong"))
	look()
	delivered(t, w.Store, one)
	heraldtest.Must(t, r.stop())
	say(key(first, "right"), key(second, "right"))
	r = run(t, false, env...)
	w = r.up()
	delivered(t, w.Store, two)
	heraldtest.Must(t, r.stop())
}
