package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Programs are Herald's binaries, built from one source tree.
type Programs struct{ dir string }

func (p Programs) worker() string  { return filepath.Join(p.dir, "worker") }
func (p Programs) enqueue() string { return filepath.Join(p.dir, "enqueue") }

// Build compiles the worker and enqueue of the source tree, and the packages in more, into a new folder. With TRIAL_BUILT,
// the folder is a link to bin/ of the source tree, which make filled a moment ago.
func Build(ctx context.Context, source, into string, more ...string) (Programs, error) {
	if os.Getenv("TRIAL_BUILT") != "" {
		built, err := filepath.Abs(filepath.Join(source, "bin"))
		return Programs{into}, errors.Join(err, os.Symlink(built, into))
	}
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", into + string(filepath.Separator), "./cmd/worker", "./cmd/enqueue"}
	cmd := exec.CommandContext(ctx, "go", append(args, more...)...)
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("build Herald from %s: %w\n%s", source, err, out)
	}
	return Programs{into}, nil
}
