package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator/keys"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
	"github.com/google/uuid"
)

const headerURL = "https://agent.example/mcp"

// sealed accepts n jobs with headers that were sealed with keyset, as enqueue does.
func (d *desk) sealed(keyset string, n int) {
	d.t.Helper()
	k := parseKeyset(d.t, keyset)
	for range n {
		d.index++
		j := job.Job{Kind: job.KindNewFeedback, ChainID: 8453, IdentityRegistry: registryOf(d.t, 8453), AgentID: big.NewInt(7), FeedbackIndex: d.index,
			Value: big.NewInt(1), Action: job.Action{Endpoint: &job.Endpoint{Transport: "http", URL: headerURL}}}
		plain, _ := json.Marshal(map[string]string{"Authorization": fmt.Sprint("Bearer hunter", d.index)})
		c, err := k.Seal(plain, job.HeaderBinding(8453, j.IdentityRegistry.Hex(), "7", headerURL))
		heraldtest.Must(d.t, err)
		_, _, err = d.store.Accept(d.t.Context(), []ledger.Intake{{Job: j, SealedHeaders: c}})
		heraldtest.Must(d.t, err)
	}
}

// opens returns the number of sealed headers that keyset can open.
func (d *desk) opens(keyset string) (n int) {
	d.t.Helper()
	k := parseKeyset(d.t, keyset)
	page, _, done, err := records.New(d.store).SealedAfter(d.t.Context(), 0)
	if err != nil || !done {
		d.t.Fatal(done, err)
	}
	for _, s := range page {
		if _, err := k.Open(s.Ciphertext, job.HeaderBinding(s.ChainID, s.Registry, s.AgentID, s.URL)); err == nil {
			n++
		}
	}
	return n
}

// with replaces the desk's keyset.
func (d *desk) with(keyset string) {
	for i, kv := range d.env {
		if strings.HasPrefix(kv, "HERALD_KEYSET=") {
			d.env[i] = "HERALD_KEYSET=" + keyset
		}
	}
}

// keysInUse returns the keys that `keys list` shows.
func (d *desk) keysInUse() []keys.Key {
	d.t.Helper()
	return ask[[]keys.Key](d, "keys", "list")
}

// next runs a step of the rotation and returns its output.
func (d *desk) next(args ...string) string {
	d.t.Helper()
	return strings.TrimSpace(d.out(append(args, "--cleartext")...))
}

// TestKeysRotation rotates the keys while every kind of secret is stored. Secrets that cannot be opened, because their
// ciphertext was replaced or moved to another row, are reported and not changed. With the former keyset, commands name
// the missing key.
func TestKeysRotation(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	first := heraldtest.Keyset(t)
	d.with(first)
	d.sealed(first, 3)
	for i := range 3 {
		d.give(0, canary+fmt.Sprint(i), "", "token", "set", fmt.Sprintf("8453:%d", i), "--origin", "https://agent.example")
	}
	d.loggedIn(oauthtest.New(t, oauthtest.Options{}), time.Now().Add(time.Hour)) // a credential and an access token
	d.worker(0, "signing-key", "rotate")
	d.ended(8, ledger.Outcome{Status: outcome.Delivered}) // without headers
	had := d.keysInUse()
	if len(had) != 1 || !had[0].Seals || had[0].Sealed != 9 {
		t.Fatalf("%+v", had)
	}
	old := strconv.FormatUint(uint64(had[0].ID), 10)
	d.says(1, "promote another one first", "keys", "rotate", "remove", old, "--cleartext")

	second := d.next("keys", "rotate", "add")
	d.with(second)
	if now := d.keysInUse(); len(now) != 2 || !now[0].Seals || now[1].Seals {
		t.Errorf("after add: %+v", now)
	}
	third := d.next("keys", "rotate", "promote")
	d.with(third)
	d.sealed(second, 1) // by a worker that has not been restarted yet
	d.sealed(third, 1)
	d.says(2, "seals already", "keys", "rotate", "promote", "--cleartext")
	d.says(1, "10 secrets are sealed with it", "keys", "rotate", "remove", old, "--cleartext")
	d.says(0, "10 of 11 secrets would be sealed anew", "keys", "reencrypt", "--dry-run")
	heraldtest.Equal(t, "opened after a dry run", d.opens(first), 4)

	page, _, _, err := records.New(d.store).SealedAfter(t.Context(), 0)
	heraldtest.Must(t, err)
	for _, replaces := range []bool{true, false} { // the second time, the ciphertext that was read is replaced already
		changed, err := records.New(d.store).Reseal(t.Context(), page[0], []byte("not what was sealed"))
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the ciphertext is replaced", changed, replaces)
	}
	d.sql(`UPDATE herald.agent_mcp_tokens SET origin = 'https://moved.example' WHERE agent_id = 2`)
	out, errs := d.worker(exitLeft, "keys", "reencrypt")
	heraldtest.Contains(t, "the output", out+errs, page[0].ID.String(), "left: the token of agent 8453:2 of registry", "8 of 11 secrets were sealed anew")
	d.says(exitLeft, "0 of 11 secrets were sealed anew", "keys", "reencrypt")
	d.says(0, "keys reencrypt", "delivery", "audit")
	heraldtest.Equal(t, "the stored token", d.reveals("8453:1")["https://agent.example"], "bearer Authorization "+canary+"1")
	d.says(1, "1 secret is sealed with it", "keys", "rotate", "remove", old, "--cleartext")
	d.says(0, "is removed", "token", "remove", "8453:2", "--origin", "https://moved.example")
	fourth := d.next("keys", "rotate", "remove", old)
	heraldtest.Equal(t, "headers that the keysets open", []int{d.opens(first), d.opens(third), d.opens(fourth)}, []int{0, 4, 4})
	d.with(fourth)
	now := d.keysInUse()
	if len(now) != 1 || now[0].Sealed != 9 {
		t.Errorf("%+v", now)
	}
	d.says(0, "8453:0 https://agent.example / bearer", "token", "list")

	sealing := strconv.FormatUint(uint64(now[0].ID), 10)
	d.with(first)
	out, errs = d.worker(0, "keys", "list")
	heraldtest.Contains(t, "the output", out, "missing: restore it")
	heraldtest.Lacks(t, "the output", out+errs, "hunter")
	d.says(0, "key "+sealing+" sealed them, which is not in HERALD_KEYSET; restore the keyset with this key", "token", "list")
	for _, l := range d.tokens() {
		heraldtest.Equal(t, "the token's state", l.State, "sealed")
	}
	d.says(0, "warning: 9 secrets are sealed with key "+sealing+", which is not in HERALD_KEYSET: if you have the keyset with that key, put it back and rotate that one",
		"keys", "rotate", "add", "--cleartext")
	d.says(exitLeft, "key "+sealing+" sealed it, which is not in HERALD_KEYSET: restore the keyset with this key", "keys", "reencrypt")
	d.says(1, "FAIL tokens 3 of 3 are sealed with key "+sealing+", which is not in HERALD_KEYSET, so put the keyset back that has it: 8453:0 for https://agent.example, 8453:1", "doctor")
	d.sql(`UPDATE herald.agent_mcp_tokens SET expires_at = now() - interval '1 s'`)
	d.says(1, "3 of 3 have expired and hold deliveries: 8453:0 for", "doctor")
}

func TestKeysWrapped(t *testing.T) {
	t.Parallel()
	master := "HERALD_MASTER_KEY=" + strings.Repeat("5a", 32)
	out, _ := checkWorker(t, nil, exitMisuse, "--cleartext", "keys", "init") // no choice was made
	heraldtest.Equal(t, "the keyset", out, "")
	out, _ = checkWorker(t, []string{master}, 0, "wrapped:", "keys", "init")
	wrapped := "HERALD_KEYSET=" + strings.TrimSpace(out)
	added, _ := checkWorker(t, []string{master, wrapped}, 0, "wrapped:", "keys", "rotate", "add")
	heraldtest.Equal(t, "the beginnings", out[:8]+added[:8], "wrapped:wrapped:")
	for says, key := range map[string]string{
		"set HERALD_MASTER_KEY": "", "does not open it": strings.Repeat("00", 32), "not 32 bytes": "hunter2"} {
		checkWorker(t, []string{wrapped, "HERALD_MASTER_KEY=" + key}, exitFailed, says, "keys", "rotate", "add")
	}
}

// TestFailedKeysStepReportsNoChange checks that a step that fails does not report that a key was added or seals.
func TestFailedKeysStepReportsNoChange(t *testing.T) {
	t.Parallel()
	env := []string{"HERALD_KEYSET=" + heraldtest.Keyset(t), "HERALD_DATA=" + t.TempDir()}
	out, errs := checkWorker(t, env, exitMisuse, "--cleartext", "keys", "rotate", "add")
	heraldtest.Equal(t, "the keyset", out, "")
	heraldtest.Lacks(t, "the refusal", errs, "was added")
	var said strings.Builder
	code := runCommand(&command{ctx: t.Context(), in: strings.NewReader(""), out: full{}, err: &said},
		[]string{"keys", "rotate", "add", "--cleartext"}, env)
	if code != exitFailed || strings.Contains(said.String(), "was added") || !strings.Contains(said.String(), "go on with the one in force") {
		t.Errorf("on a full disk: %d\n%s", code, said.String())
	}
	out, _ = checkWorker(t, env, 0, "was added and does not seal yet", "keys", "rotate", "add", "--cleartext")
	k, err := secret.Parse(secret.New(strings.TrimSpace(out)))
	if err != nil || len(k.Keys()) != 2 {
		t.Fatal(k, err)
	}
}

// full is a Writer to a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestKeysOut checks that a step whose --out is the file of the current keyset replaces the file atomically, and that
// an emptied file is not replaced.
func TestKeysOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keyset")
	rotate := func(code int, says string, args ...string) {
		t.Helper()
		out, _ := checkWorker(t, []string{"HERALD_KEYSET_FILE=" + path}, code, says,
			append(args, "--cleartext", "--out", path)...)
		heraldtest.Equal(t, "the output", out, "")
	}
	checkWorker(t, nil, 0, "wrote "+path, "keys", "init", "--cleartext", "--out", path)
	rotate(0, "was added and does not seal yet", "keys", "rotate", "add")
	k, err := secret.LoadFile(path, nil)
	if err != nil || len(k.Keys()) != 2 {
		t.Fatal(k, err)
	}
	rotate(exitFailed, "name another file", "keys", "init")
	write(t, path, "")
	rotate(exitFailed, "there is no keyset", "keys", "rotate", "add")
	other := []string{"HERALD_KEYSET=" + heraldtest.Keyset(t)}
	_, errs := checkWorker(t, other, exitFailed, "was not replaced",
		"keys", "rotate", "add", "--cleartext", "--out", path)
	heraldtest.Lacks(t, "the error", errs, "was added")
}

// TestRotationWaitsForWorkers checks that a step of a rotation is refused while a running worker has not loaded the
// keys that it needs.
func TestRotationWaitsForWorkers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	first := heraldtest.Keyset(t)
	d.with(first)
	d.sealed(first, 1)
	running := records.Worker{ID: uuid.New(), Host: "worker-1"}
	report := func(keyset string) {
		t.Helper()
		k := parseKeyset(t, keyset)
		running.Keys, running.SealsWith = nil, k.PrimaryID()
		for _, key := range k.Keys() {
			running.Keys = append(running.Keys, key.ID)
		}
		heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(), running))
	}
	report(first)
	old := fmt.Sprint(running.SealsWith)

	second := d.next("keys", "rotate", "add")
	d.with(second)
	d.says(exitFailed, "was not promoted: the worker on worker-1", "keys", "rotate", "promote", "--cleartext")
	report(second)
	third := d.next("keys", "rotate", "promote")
	d.with(third)
	d.says(exitFailed, "nothing was sealed anew: the worker on worker-1", "keys", "reencrypt")
	d.says(0, "1 of 1 secret would be sealed anew", "keys", "reencrypt", "--dry-run")
	d.says(exitFailed, "still seals with key "+old, "keys", "rotate", "remove", old, "--cleartext")
	report(first) // without the new key
	d.says(exitFailed, "could not open secrets that are sealed with it", "keys", "reencrypt")
	report(third)
	d.says(0, "1 of 1 secret was sealed anew", "keys", "reencrypt")
	report(second)
	d.says(exitFailed, "still seals with key "+old, "keys", "rotate", "remove", old, "--cleartext")

	// A killed worker counts for a minute, a stopped one does not count.
	d.sql(`UPDATE herald.workers SET seen_at = now() - interval '61 seconds'`)
	d.next("keys", "rotate", "remove", old)
	report(second)
	heraldtest.Must(t, records.New(d.store).RemoveWorker(t.Context(), running.ID))
	d.next("keys", "rotate", "remove", old)
}

// withoutSaving is Postgres while it does not store renewals.
type withoutSaving struct{ *records.Store }

func (withoutSaving) SaveRenewal(context.Context, records.Renewal, records.Access, []byte) error {
	return errors.New("Postgres is away")
}

// TestKeysOfSpooledRenewal checks that no key is removed while a login's newest refresh token waits in Redis, sealed
// with that key.
func TestKeysOfSpooledRenewal(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{RotateRefresh: true})
	login := d.loggedIn(s, time.Now().Add(-time.Hour))
	client, err := oauth.New(oauth.Config{HTTP: guardtest.Loopback(t, nil).Client(netguard.Limits{}, 0)})
	heraldtest.Must(t, err)
	authorize := func(rec auth.TokenRecords, saveTimeout time.Duration) {
		t.Helper()
		k := d.keys()
		z, err := auth.New(auth.Config{Ledger: d.store, Records: rec, Keys: k, Classify: classify.Error, OAuth: client, Spool: d.queue.Renewals(), SaveTimeout: saveTimeout})
		heraldtest.Must(t, err)
		_, err = z.Authorize(t.Context(), auth.Subject{Agent: login.Agent},
			mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: s.AgentURL})
		heraldtest.Must(t, err)
	}
	old := fmt.Sprint(d.keys().PrimaryID())
	authorize(withoutSaving{records.New(d.store)}, time.Millisecond) // by a worker that then dies
	d.sql(`UPDATE herald.agent_mcp_access SET renewing_until = NULL`)

	d.with(d.next("keys", "rotate", "add"))
	d.with(d.next("keys", "rotate", "promote"))
	d.says(0, "2 of 2 secrets were sealed anew", "keys", "reencrypt")
	d.says(exitFailed, "waits in Redis", "keys", "rotate", "remove", old, "--cleartext")
	authorize(records.New(d.store), 0)
	d.says(exitFailed, "secrets are sealed with it", "keys", "rotate", "remove", old, "--cleartext")
	d.says(0, "2 secrets were sealed anew", "keys", "reencrypt")
	d.with(d.next("keys", "rotate", "remove", old))
	authorize(records.New(d.store), 0)
}

// TestSigningKeys checks that a rotation of signing keys is listed and audited.
func TestSigningKeys(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	list := func() []keys.SigningKey { return ask[[]keys.SigningKey](d, "signing-key", "list") }
	d.worker(0, "signing-key", "rotate", "--after", "1m")
	d.sql(`UPDATE herald.signing_keys SET activates_at = now()`)
	first := list()
	if len(first) != 1 || first[0].State != keys.Signs || first[0].RetiresAt != nil {
		t.Fatalf("%+v", first)
	}
	out := d.out("signing-key", "rotate", "--actor", "night shift")
	both := list()
	if len(both) != 2 || both[0].State != keys.Next || both[1].ID != first[0].ID || both[1].State != keys.Signs ||
		!strings.HasPrefix(out, both[0].ID+" signs from ") || both[0].ActivatesAt.Sub(both[0].CreatedAt) != time.Hour ||
		both[1].RetiresAt.Sub(both[0].ActivatesAt) != 24*time.Hour {
		t.Errorf("%s, %+v", out, both)
	}
	table, _ := d.worker(0, "signing-key", "list")
	heraldtest.Contains(t, "the list", table, both[0].ID, keys.Next)
	d.says(exitMisuse, "59s is not from 1m0s to 720h", "signing-key", "rotate", "--after=59s")
	d.says(exitMisuse, "1000h0m0s is not from 0s to 720h", "signing-key", "rotate", "--keep=1000h")
	if a := d.audits()[0]; a.Action != "signing-key rotate" || a.Actor != "night shift" || !strings.Contains(string(a.Filter), both[0].ID) {
		t.Errorf("%+v", a)
	}
}
