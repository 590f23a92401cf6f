package trial

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/agentherald/herald/internal/base/embedded"
)

// FindRedisCLI returns a redis-cli: from the PATH, or the one that was fetched with the embedded redis-server. env
// contains the variables that it needs in addition to the user's environment.
func FindRedisCLI() (path string, env []string, err error) {
	if path, err = exec.LookPath("redis-cli"); err == nil {
		return path, nil, nil
	}
	bundles := filepath.Join(cmp.Or(os.Getenv("HERALD_CACHE"), embedded.DefaultCacheDir()), "bundles", "*")
	found, _ := filepath.Glob(filepath.Join(bundles, "usr", "bin", "redis-cli")) // the pattern is valid
	if len(found) == 0 {
		return "", nil, errors.New("there is no redis-cli, neither on the PATH nor beside an embedded redis-server")
	}
	libraries, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(found[0])), "lib", "*"))
	return found[0], []string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}, nil
}
