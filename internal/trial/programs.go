package trial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Programs are Herald's binaries, built from one source tree.
type Programs struct{ dir string }

func (p Programs) worker() string  { return filepath.Join(p.dir, "worker") }
func (p Programs) enqueue() string { return filepath.Join(p.dir, "enqueue") }

// Build compiles the worker and enqueue of the source tree, and the packages in more, into a folder. TRIAL_LDFLAGS
// contains make's linker flags. An existing program that was linked with the same flags is kept.
func Build(ctx context.Context, source, into string, more ...string) (Programs, error) {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return Programs{}, err
	}
	args := []string{"build", "-buildvcs=false", "-ldflags=" + cmp.Or(os.Getenv("TRIAL_LDFLAGS"), "-s -w"), "-o", into + string(filepath.Separator), "./cmd/worker", "./cmd/enqueue"}
	cmd := exec.CommandContext(ctx, "go", append(args, more...)...)
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("build Herald from %s: %w\n%s", source, err, out)
	}
	return Programs{into}, nil
}

// ErrNoHistory means that there is no git repository, or that it lacks the history to find an older commit.
var ErrNoHistory = errors.New("no git history")

// BeforeMigration returns the last commit without the newest migration of the source tree, and that migration. If the
// migration is not committed yet, the commit is HEAD.
func BeforeMigration(ctx context.Context, source string) (commit, migration string, err error) {
	found, err := filepath.Glob(filepath.Join(source, "migrations", "[0-9]*.sql"))
	if err != nil {
		return "", "", err
	}
	if len(found) < 2 {
		return "", "", fmt.Errorf("%s/migrations has %d migrations: there is no version before one", source, len(found))
	}
	migration = filepath.Base(found[len(found)-1]) // Glob sorts
	added, err := git(ctx, source, "log", "--diff-filter=A", "--format=%H", "--", "migrations/"+migration)
	if err != nil {
		return "", "", err
	}
	of := "HEAD"
	if commits := strings.Fields(added); len(commits) > 0 {
		of = commits[len(commits)-1] + "^"
	}
	commit, err = ResolveCommit(ctx, source, of)
	return commit, migration, err
}

// ResolveCommit returns the full hash of a commit in the repository of the source tree.
func ResolveCommit(ctx context.Context, source, name string) (string, error) {
	commit, err := git(ctx, source, "rev-parse", "--verify", "--end-of-options", name+"^{commit}")
	return strings.TrimSpace(commit), err
}

// Export writes the files of a commit into a folder. Unlike a worktree, it leaves nothing in the repository if this
// process dies.
func Export(ctx context.Context, source, commit, into string) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	archive := filepath.Join(into, "commit.tar")
	if _, err := git(ctx, source, "archive", "--format=tar", "--output="+archive, commit); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", into).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack commit %s: %w: %s", commit, err, out)
	}
	return os.Remove(archive)
}

// git runs git in the source tree. A failure is ErrNoHistory.
func git(ctx context.Context, source string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", source}, args...)...)
	var output strings.Builder
	cmd.Stderr = &output
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: git %s: %w: %s", ErrNoHistory, args[0], err, strings.TrimSpace(output.String()))
	}
	return string(out), nil
}
