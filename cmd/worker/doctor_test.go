package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator/doctor"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
	"github.com/google/uuid"
)

// diagnosis is the result of the doctor.
type diagnosis struct {
	t        testing.TB
	findings []doctor.Finding
}

// diagnose runs the doctor. It checks the exit code, and that the output contains no secret.
func diagnose(t testing.TB, code int, env ...string) diagnosis {
	t.Helper()
	got, out, errs := worker(t, env, "doctor", "--json")
	if got != code || strings.Contains(out+errs, "hunter2") {
		t.Errorf("exit code %d, want %d:\n%s%s", got, code, out, errs)
	}
	return diagnosis{t, decode[[]doctor.Finding](t, out)}
}

// says checks that the check has a finding with this mark and text.
func (d diagnosis) says(check, mark, text string) {
	d.t.Helper()
	for _, f := range d.findings {
		if f.Check == check && f.Mark == mark && f.OK == (mark != doctor.MarkFail) && strings.Contains(f.Text, text) {
			return
		}
	}
	d.t.Errorf("no %s of %s says %q: %+v", mark, check, text, d.findings)
}

// saysNothing checks that the check has no finding with this mark.
func (d diagnosis) saysNothing(check, mark string) {
	d.t.Helper()
	if slices.ContainsFunc(d.findings, func(f doctor.Finding) bool { return f.Check == check && f.Mark == mark }) {
		d.t.Errorf("a %s of %s: %+v", mark, check, d.findings)
	}
}

// openFolder returns a new folder that the user can enter that root's servers run as.
func openFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, path := range []string{filepath.Dir(dir), dir} {
		heraldtest.Must(t, os.Chmod(path, 0o755))
	}
	return dir
}

func TestDoctorOfNothing(t *testing.T) {
	t.Parallel()
	dir := openFolder(t)
	d := diagnose(t, 0, "HERALD_DATA="+dir, "HERALD_LISTN=:1", "REDIS_URI=redis://a")
	d.says("configuration", doctor.MarkOK, "All settings are valid.")
	d.says("configuration", doctor.MarkWarn, "HERALD_LISTN: nothing reads it: did you mean HERALD_LISTEN?")
	d.says("configuration", doctor.MarkWarn, "REDIS_URI: nothing reads it: did you mean REDIS_URL?")
	d.says("embedded", doctor.MarkOK, "No worker is running on "+dir+". Starting one would launch an embedded Postgres and Redis there.")
	d.says("programs", doctor.MarkOK, "Postgres ")
	d.says("port", doctor.MarkOK, "can be listened on")
	d.says("gateways", doctor.MarkOK, "answers")
	misspelt := []string{"HERALD_LISTN=:1"}
	checkWorker(t, misspelt, 0, "ok    configuration  All settings are valid.\nwarn  configuration  HERALD_LISTN: ",
		"doctor")
	checkWorker(t, misspelt, 0, "did you mean HERALD_LISTEN?", "config")
}

func TestDoctorOfThePort(t *testing.T) {
	t.Parallel()
	busy := httptest.NewServer(http.NotFoundHandler())
	defer busy.Close()
	diagnose(t, 1, "HERALD_LISTEN="+busy.Listener.Addr().String()).says("port", doctor.MarkFail, "is held by another program: stop that one, or set HERALD_LISTEN to another port")
	diagnose(t, 1, "HERALD_LISTEN=0.0.0.0:0").says("port", doctor.MarkFail, "set HERALD_API_TOKEN")
	diagnose(t, 1, "HERALD_LISTEN=192.0.2.1:8080", "HERALD_API_TOKEN=hunter2hunter2").says("port", doctor.MarkFail, "is not an address of this machine")
	addr := heraldtest.Address(t)
	diagnose(t, 0, "HERALD_LISTEN="+addr).says("port", doctor.MarkOK, addr+" can be listened on")
}

func TestDoctorOfGateways(t *testing.T) {
	t.Parallel()
	broken, good := ipfstest.New(), ipfstest.New()
	broken.Behave(ipfstest.Behaviour{Status: http.StatusInternalServerError})
	a, b := httptest.NewServer(broken.Handler()), httptest.NewServer(good.Handler())
	defer a.Close()
	defer b.Close()
	gone := "http://" + heraldtest.Address(t)
	d := diagnose(t, 0, "IPFS_GATEWAYS="+a.URL+","+b.URL+","+gone)
	d.says("gateways", doctor.MarkWarn, a.URL+": it answered 500; the others of IPFS_GATEWAYS are asked instead")
	d.says("gateways", doctor.MarkWarn, gone+": ")
	d.says("gateways", doctor.MarkOK, b.URL+" answers")
	d = diagnose(t, 1, "IPFS_GATEWAYS="+a.URL+","+gone)
	d.says("gateways", doctor.MarkFail, a.URL+": it answered 500; no gateway of IPFS_GATEWAYS answers")
	d.says("gateways", doctor.MarkFail, gone+": ")
}

func TestDoctorOfRedis(t *testing.T) {
	t.Parallel()
	raw := heraldtest.RealRedis(t)
	c := heraldtest.RedisClient(t, raw)
	env := []string{"DATABASE_URL=" + heraldtest.Postgres(t, postgres.Migrate), "REDIS_URL=" + raw, "HERALD_KEYSET=" + heraldtest.Keyset(t)}
	for _, state := range []string{"no", "yes"} {
		heraldtest.Must(t, c.ConfigSet(heraldtest.Within(t, 10*time.Second), "appendonly", state).Err())
		d := diagnose(t, 0, env...)
		d.says("redis", doctor.MarkOK, "answers")
		if state == "yes" {
			d.saysNothing("redis", doctor.MarkWarn)
			continue
		}
		d.says("redis", doctor.MarkWarn, "appendonly is no")
		d.says("redis", doctor.MarkWarn, "Set appendonly yes")
	}
}

// TestDoctorComparesClocks: the clock of Postgres is an hour ahead of those of this machine and Redis.
func TestDoctorComparesClocks(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	diagnose(t, 0, d.env...).saysNothing("clocks", doctor.MarkWarn)
	d.sql(`CREATE SCHEMA fast;
		CREATE FUNCTION fast.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
			$$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$;
		DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = fast, pg_catalog', current_database()); END $$`)
	diagnose(t, 0, d.env...).says("clocks", doctor.MarkWarn, "the clock of Postgres is wrong: it is 1h0m0s ahead of those of this machine and Redis. ")
}

// TestDoctorOfReadOnlyServices checks that the doctor reports Postgres and Redis if they answer but take no writes.
func TestDoctorOfReadOnlyServices(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	raw := heraldtest.RealRedis(t)
	c := heraldtest.RedisClient(t, raw)
	heraldtest.Must(t, c.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
	defer c.ReplicaOf(context.WithoutCancel(t.Context()), "NO", "ONE")
	d.sql("DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET default_transaction_read_only = on'; END $$")
	said := diagnose(t, 1, append(d.env, "REDIS_URL="+raw)...)
	said.says("postgres", doctor.MarkFail, "read-only")
	said.says("redis", doctor.MarkFail, "takes no writes")
	said.says("migrations", doctor.MarkOK, "all applied")
}

// TestDoctorOfRestrictedRole checks that the doctor reports a role that may read and write, but does not own the tables.
func TestDoctorOfRestrictedRole(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	role := d.store.Conns.Config().ConnConfig.Database + "_app"
	d.sql("CREATE ROLE " + role)
	defer d.sql("DROP OWNED BY " + role + "; DROP ROLE " + role)
	d.sql("GRANT USAGE ON SCHEMA herald TO " + role + "; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA herald TO " + role)
	said := diagnose(t, 1, append(d.env, "DATABASE_URL="+d.setting("DATABASE_URL")+"&options=-c%20role%3D"+role)...)
	said.says("postgres", doctor.MarkOK, "answers")
	said.says("migrations", doctor.MarkFail, "role "+role+" may not create the next partitions")
}

// TestDoctorNamesForeignTasks checks that the doctor lists the task types of another program in a queue that Herald
// reads, and a queue with jobs that Herald does not read.
func TestDoctorNamesForeignTasks(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, task := range []queue.Task{{Kind: "email:send", Lane: "default"}, {DeliveryID: uuid.New(), Kind: "NewFeedback", Lane: "jobs"}} {
		heraldtest.Must(t, d.queue.Enqueue(heraldtest.Within(t, 10*time.Second), task))
	}
	said := diagnose(t, 0, d.env...)
	said.says("redis", doctor.MarkWarn, `"email:send" in queue default. Give Herald a Redis database of its own`)
	said.says("redis", doctor.MarkWarn, `1 job is in queue "jobs", which no worker reads`)
	said.says("workers", doctor.MarkWarn, "no worker is running, and 1 task waits in Redis: `worker` starts one")
	for _, f := range diagnose(t, 0, append(d.env, "HERALD_REDIS_INTAKE=off")...).findings {
		heraldtest.Lacks(t, "a queue that Herald does not read", f.Text, "email:send")
	}
}

// idle is a handler of tasks that none calls.
type idle struct{ queue.Handler }

// TestDoctorComparesWorkers checks that the doctor reports workers that share only Redis or only Postgres, because each
// other finding is ok then.
func TestDoctorComparesWorkers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	server, err := queue.NewServer(d.queue, queue.ServerConfig{Handler: idle{}, Concurrency: 1, Kinds: job.TaskTypes(),
		ShutdownTimeout: time.Second})
	heraldtest.Must(t, err)
	heraldtest.Must(t, server.Start())
	defer server.Shutdown()
	heraldtest.Await(t, "asynq lists the server", func() bool { n, err := d.queue.CountReaders(); return err == nil && n == 1 })
	report := func() {
		heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(), records.Worker{ID: uuid.New(), Host: "a"}))
	}

	more := diagnose(t, 0, d.env...)
	more.says("redis", doctor.MarkWarn, "1 worker takes tasks from this Redis database, but this Postgres has 0: another Herald")
	more.says("redis", doctor.MarkWarn, "If Postgres was just away, look again in 15s")
	report()
	for _, f := range diagnose(t, 0, d.env...).findings {
		heraldtest.Lacks(t, "one worker with both", f.Text, "this Redis database")
	}
	report()
	diagnose(t, 0, d.env...).says("redis", doctor.MarkWarn, "2 workers use this Postgres, but only 1 of them can take tasks from this Redis database. Give all the same REDIS_URL")
}

// TestDoctorComparesKeysets checks that the doctor reports a running worker with another keyset, and a keyset without the
// key that encrypted the signing keys, with which no worker starts.
func TestDoctorComparesKeysets(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	env := append(d.env, "HERALD_PUBLIC_URL=https://herald.example")
	diagnose(t, 0, env...).saysNothing("signing", doctor.MarkFail)
	d.worker(0, "signing-key", "rotate")
	key := d.keys().PrimaryID()
	heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(),
		records.Worker{ID: uuid.New(), Host: "elsewhere", Keys: []uint32{key}, SealsWith: key}))
	same := diagnose(t, 0, env...)
	same.saysNothing("keyset", doctor.MarkWarn)
	same.says("signing", doctor.MarkOK, "1 signing key can be used")
	for host, w := range map[string]records.Worker{"ahead": {Keys: []uint32{key, key + 1}, SealsWith: key + 1}, "behind": {Keys: []uint32{key + 1}, SealsWith: key}} {
		w.ID, w.Host = uuid.New(), host
		heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(), w))
	}
	differ := diagnose(t, 0, env...)
	differ.says("keyset", doctor.MarkWarn, "the worker on ahead")
	differ.says("keyset", doctor.MarkWarn, "the worker on behind")

	other := append(env, "HERALD_KEYSET="+heraldtest.Keyset(t))
	said := diagnose(t, 1, other...)
	said.says("keyset", doctor.MarkWarn, "the worker on elsewhere")
	said.says("signing", doctor.MarkFail, "no signing key can be used, and no worker starts")
	_, _, errs := worker(t, other, "signing-key", "rotate")
	said = diagnose(t, 0, other...)
	said.says("signing", doctor.MarkWarn, "1 of 2 signing keys are encrypted with keys that HERALD_KEYSET lacks")
	heraldtest.Equal(t, "faults", errs, "")
}

// TestDoctorFindsMissingKeys checks that the doctor reports a running worker without a key that encrypted stored tokens,
// although it encrypts with the same key as the shell: a former key was removed too early.
func TestDoctorFindsMissingKeys(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.answers(0, "is stored for", "a-token", "y\n", "token", "set", "8453:42", "--origin", "https://agent.example")
	former := d.keys().PrimaryID()
	d.with(d.next("keys", "rotate", "add"))
	d.with(d.next("keys", "rotate", "promote"))
	key := d.keys().PrimaryID()
	report := func(host string, keys ...uint32) {
		heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(),
			records.Worker{ID: uuid.New(), Host: host, Keys: keys, SealsWith: key}))
	}
	report("whole", former, key)
	diagnose(t, 0, d.env...).saysNothing("keyset", doctor.MarkWarn)
	report("partial", key)
	diagnose(t, 0, d.env...).says("keyset", doctor.MarkWarn, fmt.Sprintf("lacks key %d, which encrypts 1 stored token", former))
}

// serving starts a worker and returns its output. The worker stops at the end of the test.
func serving(t testing.TB, env ...string) *heraldtest.Log {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	said, ended := &heraldtest.Log{}, make(chan int, 1)
	go func() { ended <- run(ctx, nil, env, io.Discard, said) }()
	t.Cleanup(func() {
		stop()
		heraldtest.Receive(t, "the end of the worker", ended)
	})
	heraldtest.AwaitState(t, func() bool { return said.Count("delivering") > 0 || len(ended) > 0 }, said.String)
	heraldtest.Contains(t, "the output", said.String(), "delivering")
	return said
}

// TestDoctorOfTheRunningWorker checks that the doctor compares the running worker's settings with this shell's, and
// names the differences.
func TestDoctorOfTheRunningWorker(t *testing.T) {
	t.Parallel()
	keyset, database := heraldtest.Keyset(t), heraldtest.Postgres(t, postgres.Migrate)
	addr := heraldtest.Address(t)
	common := []string{"HERALD_DATA=" + t.TempDir(), "HERALD_CACHE=" + t.TempDir(), "DATABASE_URL=" + database, "HERALD_QUEUE=embedded",
		"HERALD_KEYSET=" + keyset, "HERALD_LISTEN=" + addr, "IPFS_GATEWAYS=" + answeringGateway(t)}
	own := []string{"HERALD_API_TOKEN=hunter2hunter2", "HERALD_CONCURRENCY=16", "HERALD_BINDNIG=off", "RPC_URL_8453=http://127.0.0.1:1/hunter2hunter2"}
	said := serving(t, slices.Concat(common, own)...)
	heraldtest.Contains(t, "the worker's log", said.String(), "did you mean HERALD_BINDING?")
	first, _, _ := strings.Cut(said.String(), "\n")
	heraldtest.Contains(t, "the first line", first, "starting", "version")
	// Requests without the token, such as those of other users' programs or of web pages, are refused.
	resp, err := http.Get("http://" + addr + "/settings")
	heraldtest.Must(t, err)
	_ = resp.Body.Close()
	heraldtest.Equal(t, "without the token", resp.StatusCode, http.StatusUnauthorized)

	d := diagnose(t, 0, slices.Concat(common, []string{"HERALD_API_TOKEN=hunter2hunter2", "HERALD_CONCURRENCY=20"})...)
	d.says("port", doctor.MarkOK, addr+" is held by the running worker (process ")
	d.says("worker", doctor.MarkWarn, "the running worker has other settings than this shell, and goes by its own: HERALD_CONCURRENCY is 16 there, 20 here; "+
		"RPC_URL_8453 is set there, not set here. Restart the worker with the settings of this shell, or use the worker's settings here; of secrets only whether they are set")
	diagnose(t, 0, slices.Concat(common, []string{"HERALD_API_TOKEN=hunter3hunter3"})...).says("worker", doctor.MarkWarn, "another HERALD_API_TOKEN")
	d = diagnose(t, 1, slices.Concat(common, own)...) // the chain's URL is unreachable
	d.says("worker", doctor.MarkOK, "the running worker has the settings of this shell; of secrets only whether they are set is compared")
	// The worker is found by its address if HERALD_DATA names a different folder.
	elsewhere := slices.Concat(common, own, []string{"HERALD_DATA=" + t.TempDir(), "REDIS_URL=" + heraldtest.Redis(t), "HERALD_QUEUE="})
	d = diagnose(t, 1, elsewhere...)
	d.says("port", doctor.MarkOK, addr+" is held by a running worker")
	d.says("worker", doctor.MarkWarn, "HERALD_QUEUE is embedded there, not set here; REDIS_URL is not set there, set here")
}

func TestDoctorOfPrograms(t *testing.T) {
	t.Parallel()
	// A cluster of a version that is not here.
	dir := openFolder(t)
	data := filepath.Join(dir, "postgres", "data")
	heraldtest.Must(t, errors.Join(os.MkdirAll(data, 0o700), os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("12\n"), 0o600)))
	if os.Geteuid() == 0 { // a cluster that root owns would be refused for that reason
		for _, path := range []string{dir, filepath.Dir(data), data} {
			heraldtest.Must(t, os.Chown(path, 65534, 65534))
		}
	}
	diagnose(t, 1, "HERALD_DATA="+dir).says("programs", doctor.MarkFail, "was written by Postgres 12 and needs that version")
	if os.Geteuid() == 0 { // a worker could not start its Postgres there
		heraldtest.Must(t, os.Chmod(dir, 0o700))
		heraldtest.Must(t, os.Chown(dir, 0, 0))
		diagnose(t, 1, "HERALD_DATA="+filepath.Join(dir, "new")).says("programs", doctor.MarkFail, "cannot enter "+dir)
	}
}

// TestDoctorReadsTheServersFile checks that the doctor reads the servers file as the worker does, and reports its
// faults.
func TestDoctorReadsTheServersFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	data := "HERALD_DATA=" + openFolder(t)
	for content, want := range map[string]string{
		`{"servers": {"8453:42": {"url": "https://a.example"}, "1:1": {"enabled": false}}}`: "ok    servers        HERALD_SERVERS_FILE names 2 agents",
		"{\"servers\": {\n\"8453:42\": {\"url\": \"${HERALD_TEST_UNSET}\"}}}":               `FAIL  servers        ` + path + `:2: servers["8453:42"].url: names ${HERALD_TEST_UNSET}, which is not set`,
	} {
		heraldtest.Must(t, os.WriteFile(path, []byte(content), 0o600))
		code := map[bool]int{true: 0, false: exitFailed}[strings.HasPrefix(want, "ok")]
		checkWorker(t, []string{data, "HERALD_SERVERS_FILE=" + path}, code, want, "doctor")
	}
}
