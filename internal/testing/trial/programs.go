package trial

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Programs are Herald's binaries, built from one source tree.
type Programs struct{ dir string }

func (p Programs) worker() string  { return filepath.Join(p.dir, "worker") }
func (p Programs) enqueue() string { return filepath.Join(p.dir, "enqueue") }

// Build compiles the worker and enqueue of the source tree, and the packages in more, into a folder. With TRIAL_BUILT, it
// takes those in bin/ of the source tree instead, which make built a moment ago.
func Build(ctx context.Context, source, into string, more ...string) (Programs, error) {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return Programs{}, err
	}
	packages := append([]string{"./cmd/worker", "./cmd/enqueue"}, more...)
	if os.Getenv("TRIAL_BUILT") != "" {
		for _, p := range packages {
			if err := linkFile(filepath.Join(source, "bin", filepath.Base(p)), filepath.Join(into, filepath.Base(p))); err != nil {
				return Programs{}, fmt.Errorf("take what make built: %w", err)
			}
		}
		return Programs{into}, nil
	}
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", into + string(filepath.Separator)}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return Programs{}, fmt.Errorf("build Herald from %s: %w\n%s", source, err, out)
	}
	return Programs{into}, nil
}

// linkFile makes a hard link to a program, or a copy on another file system.
func linkFile(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}
