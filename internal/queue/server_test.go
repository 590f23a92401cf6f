package queue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func TestTaskEndings(t *testing.T) {
	t.Parallel()
	q := open(t)
	good := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	bad := Task{DeliveryID: uuid.New(), N: 2, Kind: kind, Lane: Retry}
	later := Task{DeliveryID: uuid.New(), N: 3, Kind: kind, Lane: Bulk}
	foreign := Task{DeliveryID: uuid.New(), N: 4, Kind: "report:send", Lane: First}
	const why = "rejected hash_mismatch: the file's keccak256 is not the hash on chain"
	for _, task := range []Task{good, bad, later, foreign} {
		enqueue(t, q, task)
	}
	serve(t, q, handler{deliver: func(_ context.Context, id uuid.UUID, n int) (string, error) {
		switch {
		case id == good.DeliveryID && n == 1:
			return "delivered", nil
		case id == bad.DeliveryID && n == 2:
			return "", fmt.Errorf("wrapped: %w", &ArchivedError{Text: why})
		}
		return "", errors.New("Postgres is away")
	}}, 2)

	heraldtest.Await(t, "one is done", func() bool { return info(t, q, good).State == asynq.TaskStateCompleted })
	heraldtest.Equal(t, "result", string(info(t, q, good).Result), "delivered")
	heraldtest.Await(t, "one is archived", func() bool { return info(t, q, bad).State == asynq.TaskStateArchived })
	heraldtest.Equal(t, "archived with", info(t, q, bad).LastErr, why)
	heraldtest.Await(t, "one comes again", func() bool { return info(t, q, later).State == asynq.TaskStateRetry })
	if i := info(t, q, later); i.LastErr != "Postgres is away" || time.Until(i.NextProcessAt) > netDelay+time.Second || locateTask(t, q, later) != Pending {
		t.Errorf("%+v", i)
	}
	heraldtest.Await(t, "the foreign type is returned", func() bool { return info(t, q, foreign).State == asynq.TaskStateRetry })
	heraldtest.Contains(t, "returned with", info(t, q, foreign).LastErr, `"report:send" is unknown to Herald`)
}

// TestWaits: a wait becomes asynq's retry of the same task, at its time, with its reason. It counts as a failure only
// if it is not free. asynq never exhausts the retries. Dropped tasks are deleted.
func TestWaits(t *testing.T) {
	t.Parallel()
	q := open(t)
	at := time.Now().Add(90*time.Second + 300*time.Millisecond)
	free := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	failed := Task{DeliveryID: uuid.New(), N: 2, Kind: kind, Lane: Bulk}
	old := Task{DeliveryID: uuid.New(), N: 3, Kind: kind, Lane: First}
	soon := Task{DeliveryID: uuid.New(), N: 4, Kind: kind, Lane: First}
	for _, task := range []Task{free, failed, old, soon} {
		enqueue(t, q, task)
	}
	free.Lane = Retry // the lane in which it waits, so that thousands of due retries do not precede first attempts
	due, runs := time.Now().Add(100*time.Millisecond), make(chan time.Time, 10)
	serve(t, q, handler{deliver: func(_ context.Context, id uuid.UUID, _ int) (string, error) {
		switch id {
		case free.DeliveryID:
			return "", &WaitError{Text: "throttled: it takes 1 a second", At: at, Free: true}
		case failed.DeliveryID:
			return "", fmt.Errorf("wrapped: %w", &WaitError{Text: "server_error: 503", At: at})
		case old.DeliveryID:
			return "", ErrDropped
		}
		now := time.Now()
		if runs <- now; now.After(due) {
			return "", nil
		}
		return "", &WaitError{Text: "agent_busy", At: due, Free: true}
	}}, 4)

	for task, want := range map[Task]struct {
		text    string
		retried int
	}{free: {"throttled: it takes 1 a second", 0}, failed: {"wrapped: server_error: 503", 1}} {
		heraldtest.Await(t, "it waits", func() bool {
			i, err := q.inspector.GetTaskInfo(string(task.Lane), task.ID())
			return err == nil && i.State == asynq.TaskStateRetry
		})
		i := info(t, q, task)
		if i.LastErr != want.text || i.Retried != want.retried || i.NextProcessAt.Before(at) || i.NextProcessAt.Sub(at) > 2*time.Second {
			t.Errorf("%+v, wanted until %s", i, at)
		}
		if i.MaxRetry < 30*24*3600/5 { // by then a delivery has expired
			t.Errorf("asynq gives it up after %d tries", i.MaxRetry)
		}
		heraldtest.Equal(t, "the place of the task", locateTask(t, q, task), Postponed)
	}
	heraldtest.Await(t, "what is old is gone", func() bool { return locateTask(t, q, old) == Nowhere })
	if i, err := q.inspector.GetTaskInfo(string(First), old.ID()); !errors.Is(err, asynq.ErrTaskNotFound) {
		t.Errorf("%+v, %v", i, err)
	}
	heraldtest.Receive(t, "the first run", runs)
	if again := heraldtest.Receive(t, "the second run", runs); again.Before(due) {
		t.Errorf("it ran %s early", due.Sub(again))
	}
	heraldtest.Await(t, "nothing waits before first attempts", func() bool {
		i, err := q.inspector.GetQueueInfo(string(First))
		return err == nil && i.Size == 0
	})
	for lane, failures := range map[Lane]int{First: 0, Retry: 0, Bulk: 1} {
		if i, err := q.inspector.GetQueueInfo(string(lane)); err != nil || i.Failed != failures {
			t.Errorf("lane %s: %+v, %v", lane, i, err)
		}
	}

	heraldtest.Must(t, q.Drop(heraldtest.Within(t, 10*time.Second), []Task{{DeliveryID: free.DeliveryID, N: free.N}, failed, {DeliveryID: uuid.New()}}))
	for _, task := range []Task{free, failed} {
		heraldtest.Equal(t, fmt.Sprintf("the place of %s", task.ID()), locateTask(t, q, task), Nowhere)
	}
}

// TestForeignJobsAreIntakes: a complete job in a task of a Herald type is an intake, in the lanes default and first.
// Bytes that are no job are intakes, too, and so are jobs with a field deliveryId.
func TestForeignJobsAreIntakes(t *testing.T) {
	t.Parallel()
	q := open(t)
	bodies := []string{`{"type":"NewFeedback","chainId":1}`, `{"deliveryId":"00000000-0000-0000-0000-000000000000","n":1}`, `{"deliveryId":7}`, `{"deliveryId":"4b0e8ad5-0000-4000-8000-000000000000","n":1} {}`,
		`{"action_type":"mcp","deliveryId":"4b0e8ad5-0000-4000-8000-000000000000","event_data":{}}`, "not JSON \x00\xff", "", "null", "[]"}
	got := make(chan string, 2*len(bodies))
	serve(t, q, handler{intake: func(_ context.Context, k string, body []byte) (string, error) {
		heraldtest.Equal(t, "type", k, kind)
		got <- string(body)
		return "accepted", nil
	}}, 2)
	want := map[string]int{}
	for _, lane := range []string{"default", "first"} {
		for _, body := range bodies {
			enqueueForeign(t, q, asynq.NewTask(kind, []byte(body)), asynq.Queue(lane))
			want[body]++
		}
	}
	for range 2 * len(bodies) {
		want[heraldtest.Receive(t, "an intake", got)]--
	}
	for body, left := range want {
		heraldtest.Equal(t, body, left, 0)
	}
}

// TestIntakeOutage: a whole job cannot be stored, because Postgres is away. asynq neither archives its task nor counts a
// retry, however few retries the sender allows.
func TestIntakeOutage(t *testing.T) {
	t.Parallel()
	q := open(t)
	var ids []string
	for _, most := range []int{0, 1, 25} {
		ids = append(ids, enqueueForeign(t, q, asynq.NewTask(kind, []byte(`{"chainId":1}`)), asynq.MaxRetry(most)))
	}
	serve(t, q, handler{intake: func(context.Context, string, []byte) (string, error) { return "", errors.New("Postgres is away") }}, 3)
	for _, id := range ids {
		heraldtest.Await(t, "a later try", func() bool {
			i, err := q.inspector.GetTaskInfo("default", id)
			heraldtest.Must(t, err)
			if i.State == asynq.TaskStateArchived || i.Retried > 0 {
				t.Fatalf("%s, retried %d of %d", i.State, i.Retried, i.MaxRetry)
			}
			return i.State == asynq.TaskStateRetry
		})
	}
}

// TestDocumentedClient runs the asynq client of docs/reference/jobs.md and checks that the intake receives a valid job.
func TestDocumentedClient(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/jobs.md")
	heraldtest.Must(t, err)
	_, program, _ := strings.Cut(string(page), "```go\n")
	program, _, _ = strings.Cut(program, "```")
	file := filepath.Join(t.TempDir(), "main.go")
	heraldtest.Must(t, os.WriteFile(file, []byte(program), 0o600))
	address := heraldtest.RealRedis(t)
	run := exec.CommandContext(t.Context(), "go", "run", file)
	run.Env = append(os.Environ(), "CGO_ENABLED=0", "REDIS_URL="+address)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := make(chan string, 1)
	serve(t, openAt(t, address), handler{intake: func(_ context.Context, k string, body []byte) (string, error) {
		got <- string(body)
		return "accepted", nil
	}}, 1)
	if j, err := job.Parse([]byte(heraldtest.Receive(t, "the job", got)), job.Limits{}); err != nil || j.Kind != job.KindNewFeedback {
		t.Errorf("%+v, %v", j, err)
	}
}

// TestLaneShares: while first has tasks waiting, each other lane gets its share. Lanes are asked at most 1.5 times per
// task, although other lanes may be asked before first.
func TestLaneShares(t *testing.T) {
	t.Parallel()
	q := openAt(t, heraldtest.RealRedis(t))
	put := func(lane string) { enqueueForeign(t, q, asynq.NewTask(kind, []byte(lane)), asynq.Queue(lane)) }
	const ofFirst, ofOthers = 1500, 4
	all := ofFirst
	for range ofFirst {
		put(string(First))
	}
	for lane := range lanes {
		for range ofOthers {
			if lane != string(First) {
				put(lane)
				all++
			}
		}
	}

	got, counted := make(chan string, all), make(chan bool)
	taken := 0 // one at a time
	serve(t, q, handler{intake: func(_ context.Context, _ string, body []byte) (string, error) {
		got <- string(body)
		if taken++; taken == all {
			<-counted // otherwise empty lanes would be asked
		}
		return "", nil
	}}, 1)
	first := 0
	for range all {
		switch lane := heraldtest.Receive(t, "a task", got); {
		case lane == string(First):
			first++
		case first == ofFirst:
			t.Errorf("a task of lane %s was taken after all of first", lane)
		}
	}
	asked := 0
	stats, err := q.rdb.Info(t.Context(), "commandstats").Result()
	if err == nil {
		_, err = fmt.Sscanf(infoField(stats, "cmdstat_rpoplpush"), "calls=%d", &asked)
	}
	close(counted)
	heraldtest.Must(t, err)
	if most := all * 3 / 2; asked < all || asked > most {
		t.Errorf("lanes were asked %d times for %d tasks, want at most %d", asked, all, most)
	}
}

// TestPanicComesBack: a panic in a handler delays its task, and does not stop the worker.
func TestPanicComesBack(t *testing.T) {
	t.Parallel()
	q := open(t)
	task := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	enqueue(t, q, task)
	serve(t, q, handler{deliver: func(context.Context, uuid.UUID, int) (string, error) { panic("boom") }}, 1)
	heraldtest.Await(t, "the task waits for another try", func() bool { return info(t, q, task).State == asynq.TaskStateRetry })
}

// TestFullRedisIsNotAskedAllTheTime: while Redis gives out no tasks because its memory is full, the server asks a few
// times a second.
func TestFullRedisIsNotAskedAllTheTime(t *testing.T) {
	t.Parallel()
	q := openAt(t, heraldtest.RealRedis(t))
	ctx := heraldtest.Within(t, 20*time.Second)
	heraldtest.Must(t, q.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	defer q.rdb.ConfigSet(ctx, "maxmemory", "0")
	asked := askedTimes{refused: make(chan time.Time, 3)}
	q.rdb.(redis.UniversalClient).AddHook(asked)
	serve(t, q, handler{}, 1)
	var times [3]time.Time
	for i := range times {
		times[i] = heraldtest.Receive(t, "a refusal", asked.refused)
	}
	if took := times[2].Sub(times[0]); took < 2*refusedPause {
		t.Errorf("asked three times in %s", took)
	}
}

// askedTimes notes when Redis refused to give out a task.
type askedTimes struct {
	dequeuePause
	refused chan time.Time
}

func (a askedTimes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		err := next(ctx, command)
		if command.Name() == "evalsha" && redis.HasErrorPrefix(err, "OOM") && strings.HasSuffix(fmt.Sprint(command.Args()[3]), ":pending") {
			select {
			case a.refused <- time.Now():
			default:
			}
		}
		return err
	}
}

// TestGracefulShutdown: shutdown stops taking tasks and waits for running ones.
func TestGracefulShutdown(t *testing.T) {
	t.Parallel()
	q := open(t)
	running := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	enqueue(t, q, running)
	begun, finish := make(chan bool, 1), make(chan bool)
	shutdown := serve(t, q, handler{deliver: func(context.Context, uuid.UUID, int) (string, error) {
		begun <- true
		<-finish
		return "delivered", nil
	}}, 1)
	heraldtest.Receive(t, "the task runs", begun)
	ended := make(chan bool)
	go func() { shutdown(); close(ended) }()
	select {
	case <-ended:
		t.Fatal("it did not wait for the running task")
	default:
	}
	close(finish)
	heraldtest.Receive(t, "the server stops", ended)
	heraldtest.Equal(t, "the running task is", info(t, q, running).State, asynq.TaskStateCompleted)
	waiting := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	enqueue(t, q, waiting)
	heraldtest.Equal(t, "a task of later is", info(t, q, waiting).State, asynq.TaskStatePending)
}

func TestNewServerRefuses(t *testing.T) {
	t.Parallel()
	q := open(t)
	for name, cfg := range map[string]ServerConfig{
		"no handler":     {Concurrency: 1, ShutdownTimeout: time.Second},
		"no concurrency": {Handler: handler{}, ShutdownTimeout: time.Second},
		"no timeout":     {Handler: handler{}, Concurrency: 1},
	} {
		_, err := NewServer(q, cfg)
		heraldtest.Fails(t, name, err)
	}
}

// TestServers: a queue counts its own server and those of others, including one with the same name.
func TestServers(t *testing.T) {
	t.Parallel()
	url := heraldtest.Redis(t)
	q := openAt(t, url)
	is := func(others int, self bool) bool {
		t.Helper()
		n, own, err := q.Servers(t.Context())
		heraldtest.Must(t, err)
		return n == others && own == self
	}
	if !is(0, false) {
		t.Error("there are servers before one runs")
	}
	serve(t, q, handler{}, 1)
	heraldtest.Await(t, "its own server is listed", func() bool { return is(0, true) })

	const elsewhere = "asynq:servers:{elsewhere:1:id}"
	score := float64(time.Now().Add(-14 * time.Hour).Unix()) // of a machine whose clock is that much behind
	listed := []redis.Z{{Score: score, Member: elsewhere}}
	for i := range maxListed { // of servers that were killed long ago
		listed = append(listed, redis.Z{Member: fmt.Sprintf("asynq:servers:{killed:%d:id}", i)})
	}
	heraldtest.Must(t, q.rdb.ZAdd(t.Context(), "asynq:servers", listed...).Err())
	heraldtest.Must(t, q.rdb.Set(t.Context(), elsewhere, "info", 0).Err())
	if !is(1, true) {
		t.Error("a server with a slow clock is not counted")
	}
	heraldtest.Must(t, q.rdb.Del(t.Context(), elsewhere).Err())
	if !is(0, true) {
		t.Error("a killed server is counted")
	}
	heraldtest.Must(t, q.rdb.ZRem(t.Context(), "asynq:servers", elsewhere).Err())
	serve(t, openAt(t, url), handler{}, 1)
	heraldtest.Await(t, "a second one is there", func() bool { return is(1, true) })
}
