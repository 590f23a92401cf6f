package app

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestWorkerRecord checks that a running worker's record lists the keys that it has loaded, and that an orderly stop
// deletes the record.
func TestWorkerRecord(t *testing.T) {
	t.Parallel()
	database, keyset := heraldtest.Postgres(t, postgres.Migrate), heraldtest.Keyset(t)
	k, err := secret.Parse(secret.New(keyset))
	heraldtest.Must(t, err)
	st, err := store.Open(postgres.Config{URL: secret.New(database)})
	heraldtest.Must(t, err)
	t.Cleanup(st.Close)
	r := run(t, false, "DATABASE_URL="+database, "REDIS_URL="+heraldtest.Redis(t), "HERALD_KEYSET="+keyset)
	r.up()
	list, err := records.New(st).Workers(heraldtest.Within(t, 10*time.Second))
	if err != nil || len(list) != 1 || list[0].SealsWith != k.PrimaryID() || len(list[0].Keys) != 1 || !list[0].HasKey(k.PrimaryID()) || list[0].Host == "" {
		t.Errorf("%+v, %v", list, err)
	}
	heraldtest.Must(t, r.stop())
	if list, err := records.New(st).Workers(heraldtest.Within(t, 10*time.Second)); err != nil || len(list) != 0 {
		t.Errorf("after the stop: %+v, %v", list, err)
	}
}
