package queue

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// documentedRights returns the rules of the user in docs/reference/queues.md.
func documentedRights(t testing.TB) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/queues.md")
	heraldtest.Must(t, err)
	line := regexp.MustCompile("(?m)^ACL SETUSER herald (.+)$").FindStringSubmatch(string(page))
	if line == nil {
		t.Fatal("the page documents no user")
	}
	return strings.Fields(line[1])
}

// TestFindRefusal: answers of Redis 7.0 to renamed commands, of Redis 6.2 and Valkey 9.1 in a script, and a passing error.
func TestFindRefusal(t *testing.T) {
	t.Parallel()
	for answer, refuses := range map[string]bool{
		"ERR unknown command 'eval', with args beginning with: 'local s, h'":  true,
		"ERR Unknown Redis command called from script script: a8153":          true,
		"ERR Unknown command called from script":                              true,
		"ERR ACL failure in script: User herald has no permissions to run it": true,
		"ERR The user executing the script can't run this command":            true,
		"OOM command not allowed when used memory > 'maxmemory'.":             false,
	} {
		err := findRefusal("eval", errors.New(answer))
		heraldtest.Equal(t, answer, err != nil, refuses)
		if err != nil {
			heraldtest.Lacks(t, "the error", err.Error(), "local s, h")
		}
	}
	heraldtest.Equal(t, "no error", findRefusal("eval", nil), nil)
}

// TestRightsAreComplete: the check runs every command that a script of Herald or asynq runs.
func TestRightsAreComplete(t *testing.T) {
	t.Parallel()
	asynq, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "github.com/hibiken/asynq/internal/rdb").Output()
	heraldtest.Must(t, err)
	call, names := regexp.MustCompile(`redis\.p?call\(["'](\w+)["']`), map[string]bool{}
	for _, dir := range []string{"..", strings.TrimSpace(string(asynq))} {
		heraldtest.Must(t, filepath.WalkDir(dir, func(path string, file fs.DirEntry, err error) error {
			if isSource := strings.HasSuffix(path, ".lua") || strings.HasSuffix(path, ".go"); err != nil || file.IsDir() || !isSource {
				return err
			}
			source, err := os.ReadFile(path)
			for _, match := range call.FindAllStringSubmatch(string(source), -1) {
				names[strings.ToUpper(match[1])] = true
			}
			return err
		}))
	}
	for name := range names {
		heraldtest.Contains(t, "the check", rightsSource, "{'"+name+"'")
	}
	heraldtest.Equal(t, "commands were found", len(names) > 30, true)
}

// TestRights: CheckServer names a command or keys that Redis refuses, and accepts the documented user. With that user,
// Redis refuses nothing to a server that runs tasks.
func TestRights(t *testing.T) {
	t.Parallel()
	raw := heraldtest.RealRedis(t)
	admin := openAt(t, raw).rdb.(redis.UniversalClient)
	ctx := heraldtest.Within(t, time.Minute)
	setUser := func(rules ...string) *Queue {
		args := []any{"ACL", "SETUSER", "herald", "reset"}
		for _, rule := range append(documentedRights(t), rules...) {
			args = append(args, rule)
		}
		heraldtest.Must(t, admin.Do(ctx, args...).Err())
		return openAt(t, strings.Replace(raw, "://", "://herald:PASSWORD@", 1))
	}
	t.Cleanup(func() { heraldtest.Must(t, admin.Do(context.Background(), "ACL", "DELUSER", "herald").Err()) })
	for rules, want := range map[string]string{
		"-info": "the command info ", "-eval": "the command eval ", "-evalsha": "the command evalsha ",
		"-rpoplpush": "the command rpoplpush ", "-time": "the command time ",
		"resetkeys ~asynq:*": "docs/reference/queues.md", "resetkeys ~herald:*": "docs/reference/queues.md",
	} {
		q := setUser(strings.Fields(rules)...)
		err := q.CheckServer(ctx)
		heraldtest.Fails(t, "the check with "+rules, err, "Redis refuses the command ", want)
		if _, unfit := err.(*UnfitError); !unfit {
			t.Errorf("%s: %T", rules, err)
		}
	}
	heraldtest.Fails(t, "a ping", setUser("-setrange").Ping(ctx), "Redis refuses the command setrange ", "queues.md")

	q := setUser()
	heraldtest.Must(t, admin.Do(ctx, "ACL", "LOG", "RESET").Err())
	heraldtest.Must(t, q.Ping(ctx))
	heraldtest.Must(t, q.CheckServer(ctx))
	task := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	enqueue(t, q, task)
	ran := make(chan bool, 1)
	shutdown := serve(t, q, handler{deliver: func(context.Context, uuid.UUID, int) (string, error) {
		ran <- true
		return "", nil
	}}, 1)
	heraldtest.Receive(t, "the task", ran)
	heraldtest.Await(t, "the task ends", func() bool { return locateTask(t, q, task) == Nowhere })
	_, err := q.Lanes(ctx)
	heraldtest.Must(t, err)
	shutdown()
	denied, err := admin.Do(ctx, "ACL", "LOG").Slice()
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "refused commands", len(denied), 0)
	left, err := admin.Keys(ctx, "*rights*").Result()
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "keys of the check", len(left), 0)
}
