package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// TestMissingKeysAreReported checks that a worker with a wrong keyset logs at its start which key sealed the stored
// secrets, and that the operator must restore that keyset.
func TestMissingKeysAreReported(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, heraldtest.Postgres(t, postgres.Migrate), 0)
	right, err := secret.Create()
	heraldtest.Must(t, err)
	wrong, err := secret.Create()
	heraldtest.Must(t, err)
	for i := range 2 {
		storeToken(t, st, right, records.Token{Agent: erc8004.Agent{ChainID: 8453, Registry: "0xaa", ID: fmt.Sprint(i)}})
	}
	for keys, want := range map[*secret.Keyset]string{right: "", wrong: fmt.Sprintf("restore the keyset with this key\" key=%d tokens=2", right.PrimaryID())} {
		var said bytes.Buffer
		(&assembly{records: records.New(st), keys: keys, log: slog.New(slog.NewTextHandler(&said, nil))}).logMissingKeys(t.Context())
		if !strings.Contains(said.String(), want) || (said.Len() > 0) != (want != "") {
			t.Errorf("%q; want %q", said.String(), want)
		}
	}
}

// TestWorkerRecord checks that a running worker's record lists the keys that it has loaded, and that an orderly stop
// deletes the record. A metric counts the stored tokens that expire soon.
func TestWorkerRecord(t *testing.T) {
	t.Parallel()
	database, keyset := heraldtest.Postgres(t, postgres.Migrate), heraldtest.Keyset(t)
	k, err := secret.Parse(secret.New(keyset))
	heraldtest.Must(t, err)
	st := storetest.Open(t, database, 0)
	soon := time.Now().Add(time.Hour)
	storeToken(t, st, k, records.Token{Agent: erc8004.Agent{ChainID: 8453, Registry: "0xaa", ID: "1"}, ExpiresAt: &soon})
	r := run(t, false, servicesEnv(t, "DATABASE_URL="+database, "HERALD_KEYSET="+keyset)...)
	r.up()
	list, err := records.New(st).Workers(t.Context())
	if err != nil || len(list) != 1 || list[0].SealsWith != k.PrimaryID() || len(list[0].Keys) != 1 || !list[0].HasKey(k.PrimaryID()) || list[0].Host == "" {
		t.Errorf("%+v, %v", list, err)
	}
	heraldtest.Contains(t, "/metrics", r.get("", "/metrics"), `herald_tokens_expiring{state="soon"} 1`, `herald_tokens_expiring{state="expired"} 0`)
	heraldtest.Must(t, r.stop())
	heraldtest.Equal(t, "the records after the stop", fmt.Sprint(records.New(st).Workers(t.Context())), "[] <nil>")
}

// storeToken completes a bearer token, seals it and stores it.
func storeToken(t *testing.T, st *store.Store, k *secret.Keyset, token records.Token) {
	t.Helper()
	token.Origin, token.Scheme, token.Header = "https://agent.example", records.SchemeBearer, "Authorization"
	var err error
	token.Ciphertext, err = k.Seal([]byte("t0ken"), token.Binding())
	heraldtest.Must(t, err)
	_, _, err = records.New(st).SetToken(t.Context(), token)
	heraldtest.Must(t, err)
}
