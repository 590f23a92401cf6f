package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

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
