package app

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestServersFile checks that the servers file sets an agent's endpoint and credential, and can hold its deliveries. A
// changed file takes effect without a restart, and a broken one does not. Deliveries that are held because the file
// disabled the agent, or because the agent refused the file's credential, are delivered after the file was corrected,
// both while the worker runs and at its start.
func TestServersFile(t *testing.T) {
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
	const nobody = "https://127.0.0.1:1/nobody"
	open, first, second := feedback(t, net, nobody), feedback(t, net, door.URL), feedback(t, net, nobody)
	path := filepath.Join(t.TempDir(), "servers.json")
	say := func(enabled bool, keyOfFirst, keyOfSecond string) {
		t.Helper()
		entries := fmt.Sprintf(`"99:1": {}, "%d:%s": {"url": %q, "enabled": %t}`, net.ChainID(), agentOf(t, open), a.URL, enabled)
		for key, line := range map[string][]byte{keyOfFirst: first, keyOfSecond: second} {
			if key == "" {
				continue
			}
			entries += fmt.Sprintf(`, "%d:%s": {"url": %q, "auth": {"type": "header", "header": "X-Api-Key", "token": %q}}`,
				net.ChainID(), agentOf(t, line), door.URL, key)
		}
		write(t, path, `{"servers": {`+entries+`}}`)
	}
	say(false, "", "wrong")
	env := workerEnv(t, net, "HERALD_SERVERS_FILE="+path)
	r := run(t, false, env...)
	w := r.up()
	refused := func(id uuid.UUID, says string) {
		t.Helper()
		until(t, w.Store, id, func(d ledger.Delivery) bool {
			return d.Status == outcome.Held && d.Reason == "auth_required" && strings.Contains(d.Error, says)
		})
	}
	const ofTheFile = "correct its auth or headers in the servers file"
	disabled, one, two := accept(t, w, open), accept(t, w, first), accept(t, w, second)
	until(t, w.Store, disabled, func(d ledger.Delivery) bool { return d.Status == outcome.Held && d.Reason == "agent_disabled" })
	refused(one, "401")
	refused(two, ofTheFile)

	write(t, path, "{\n")
	heraldtest.AwaitState(t, func() bool { return strings.Contains(r.log.String(), "is invalid") }, func() string { return r.log.String() })
	say(true, "no better", "wrong")
	heraldtest.Equal(t, "the endpoint", delivered(t, w.Store, disabled).Endpoint, a.URL)
	refused(one, ofTheFile)
	say(true, "right 1", "wrong")
	delivered(t, w.Store, one)
	heraldtest.Must(t, r.stop())
	heraldtest.Contains(t, "the log", r.log.String(), "set IDENTITY_REGISTRY_99",
		fmt.Sprintf("%d:%s (enabled)", net.ChainID(), agentOf(t, open)))

	say(true, "right 1", "right 2")
	r = run(t, false, env...)
	delivered(t, r.up().Store, two)
	heraldtest.Must(t, r.stop())
	heraldtest.Equal(t, "calls", a.count(), 3)
	write(t, path, "{\n,")
	heraldtest.Fails(t, "the start", run(t, false, env...).wait(), "HERALD_SERVERS_FILE: "+path+":2: is not JSON")
}
