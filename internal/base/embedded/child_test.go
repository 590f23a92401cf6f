package embedded

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestStartNamesTheCause checks the error of a Postgres on a full disk, which prints its cause, and refuses the
// connections that are tried until it ends, or until it is not waited for any longer.
func TestStartNamesTheCause(t *testing.T) {
	t.Parallel()
	const says = `echo 'PANIC:  could not write to file "x": No space left on device'
for i in $(seq 1 100); do
	echo '2026 GMT [7] FATAL:  the database system is not yet accepting connections'
	echo '2026 GMT [7] DETAIL:  Consistent recovery state has not been yet reached.'
	echo '2026 GMT [8] FATAL:  the database system is in recovery mode'
done
for i in $(seq 1 9); do echo "LOG:  step $i"; done
`
	for _, end := range []string{"exit 1", "exec sleep 60"} {
		s := Server{name: "postgres", base: t.TempDir(), installed: installation{location: location{dir: "/bin", server: "sh"}},
			acct: account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, logger: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := s.launch(ctx, []string{"-c", says + end}, func() (bool, error) {
			if end != "exit 1" && strings.Contains(s.child.tail.String(), "step 9") {
				cancel()
			}
			return false, nil
		})
		cancel()
		must(t, s.child.stop(t.Context(), syscall.SIGKILL, syscall.SIGKILL))
		if err == nil || !strings.Contains(err.Error(), "No space left on device") || !strings.Contains(err.Error(), "step 9") ||
			strings.Contains(err.Error(), "recovery") {
			t.Errorf("%s: %v", end, err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got := describeFullDisk(dir, 1<<62); runtime.GOOS == "linux" && !strings.Contains(got, dir+" has only ") {
		t.Error(got)
	}
	equal(t, "what is said of a disk with space", describeFullDisk(dir, 0), "")
}
