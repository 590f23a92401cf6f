package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestStoredToken checks that the worker sends the stored token, and that a metric reports when the token expires.
func TestStoredToken(t *testing.T) {
	t.Parallel()
	const token = "canary-4c6f7264"
	net := devnettest.Start(t, devnet.Config{})
	keyset := heraldtest.Keyset(t)
	keys, err := secret.Parse(secret.New(keyset))
	heraldtest.Must(t, err)
	a := openAgent(t)
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token && !strings.HasPrefix(r.URL.Path, "/.well-known/") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		a.ServeHTTP(w, r)
	}))
	t.Cleanup(door.Close)
	r := run(t, false, workerEnv(t, net, "HERALD_KEYSET="+keyset)...)
	w := r.up()
	line := feedback(t, net, door.URL)
	id := accept(t, w, line)
	d := until(t, w.Store, id, func(d ledger.Delivery) bool { return d.Status == outcome.Held })
	if d.Reason != "auth_required" {
		t.Fatalf("%s: %s", d.Reason, d.Error)
	}
	soon := time.Now().Add(time.Hour)
	var j job.Job
	heraldtest.Must(t, j.UnmarshalJSON(d.Job))
	stored := records.Token{Agent: erc8004.Agent{ChainID: j.ChainID, Registry: strings.ToLower(j.IdentityRegistry.Hex()), ID: j.AgentID.String()},
		Origin: netguard.CredentialOrigin(door.URL), Scheme: records.SchemeBearer, Header: "Authorization", ExpiresAt: &soon}
	stored.Ciphertext, err = keys.Seal([]byte(token), stored.Binding())
	heraldtest.Must(t, err)
	n, tasks, err := records.New(w.Store).SetToken(t.Context(), stored)
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	w.Intake.Dispatcher.Dispatch(t.Context(), tasks)
	delivered(t, w.Store, id)
	metrics := r.get("", "/metrics")
	heraldtest.Contains(t, "/metrics", metrics, `herald_tokens_expiring{state="soon"} 1`,
		`herald_tokens_expiring{state="expired"} 0`)
	heraldtest.Must(t, r.stop())
	heraldtest.Lacks(t, "the metrics and the log", metrics+r.log.String(), token)
}

// TestMissingKeysAreReported checks that a worker with a wrong keyset logs at its start which key sealed the stored
// secrets, and that the operator must restore that keyset.
func TestMissingKeysAreReported(t *testing.T) {
	t.Parallel()
	st, err := store.Open(postgres.Config{URL: secret.New(heraldtest.Postgres(t, postgres.Migrate))})
	heraldtest.Must(t, err)
	t.Cleanup(st.Close)
	right, err := secret.Create()
	heraldtest.Must(t, err)
	wrong, err := secret.Create()
	heraldtest.Must(t, err)
	for i := range 2 {
		token := records.Token{Agent: erc8004.Agent{ChainID: 8453, Registry: "0xaa", ID: fmt.Sprint(i)}, Origin: "https://agent.example", Scheme: records.SchemeBearer,
			Header: "Authorization"}
		token.Ciphertext, err = right.Seal([]byte("t0ken"), token.Binding())
		heraldtest.Must(t, err)
		_, _, err := records.New(st).SetToken(t.Context(), token)
		heraldtest.Must(t, err)
	}
	for keys, want := range map[*secret.Keyset]string{right: "", wrong: fmt.Sprintf("restore the keyset with this key\" key=%d tokens=2", right.PrimaryID())} {
		var said bytes.Buffer
		(&assembly{records: records.New(st), keys: keys, log: slog.New(slog.NewTextHandler(&said, nil))}).logMissingKeys(t.Context())
		if !strings.Contains(said.String(), want) || (said.Len() > 0) != (want != "") {
			t.Errorf("%q; want %q", said.String(), want)
		}
	}
}
