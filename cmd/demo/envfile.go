package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"regexp"
	"strings"
)

// unset lists variables of the reader's shell that would connect commands to other services than the demo's.
var unset = []string{"DATABASE_URL", "DATABASE_URL_FILE", "HERALD_LEADER_DATABASE_URL",
	"HERALD_LEADER_DATABASE_URL_FILE", "REDIS_URL", "REDIS_URL_FILE", "HERALD_QUEUE", "HERALD_KEYSET",
	"HERALD_KEYSET_FILE", "HERALD_MASTER_KEY", "HERALD_MASTER_KEY_FILE", "HERALD_API_TOKEN", "HERALD_API_TOKEN_FILE"}

// formatEnvFile writes the variables as shell commands.
func formatEnvFile(env []string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# The environment of the demo that runs as process %d. It goes when the demo ends.\n", os.Getpid())
	fmt.Fprintf(&b, "unset %s\n", strings.Join(unset, " "))
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quoteForShell(value))
	}
	return b.Bytes()
}

// quoteForShell quotes a word so that a shell does not change it.
func quoteForShell(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// quotePath quotes a path only if a shell would change it.
func quotePath(path string) string {
	if plainPath.MatchString(path) {
		return path
	}
	return quoteForShell(path)
}

var plainPath = regexp.MustCompile(`^[A-Za-z0-9_./+:@%,-]+$`)

// readEnvFile returns the value of one variable in a file that formatEnvFile wrote.
func readEnvFile(file []byte, name string) (string, bool) {
	for line := range strings.Lines(string(file)) {
		rest, ok := strings.CutPrefix(line, "export "+name+"='")
		if !ok {
			continue
		}
		value, ok := strings.CutSuffix(strings.TrimRight(rest, "\n"), "'")
		return strings.ReplaceAll(value, `'\''`, "'"), ok
	}
	return "", false
}

// writeEnvFile replaces the file atomically. Only its owner can read it.
func (w *world) writeEnvFile(path string, env []string) error {
	w.env = env
	next := path + ".new"
	if err := os.WriteFile(next, formatEnvFile(env), 0o600); err != nil {
		return fmt.Errorf("write the demo's environment (--env-file names another place): %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write the demo's environment: %w", err)
	}
	w.envFile = path
	return nil
}

// chooseEnvFile returns path if no running demo has written it, or else the first path with a number of which that is
// true, such as demo-2.env.
func chooseEnvFile(path string) string {
	chosen := path
	for n := 2; isInUse(chosen); n++ {
		chosen = fmt.Sprintf("%s-%d.env", strings.TrimSuffix(path, ".env"), n)
	}
	return chosen
}

// isInUse reports whether the demo that wrote this file still runs.
func isInUse(path string) bool {
	file, _ := os.ReadFile(path) // without a file there is no data folder
	data, _ := readEnvFile(file, "HERALD_DATA")
	c, err := net.Dial("unix", socketPath(data))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// removeEnvFile removes the file unless another demo has replaced it.
func (w *world) removeEnvFile() error {
	if w.envFile == "" {
		return nil
	}
	written, err := os.ReadFile(w.envFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(written, formatEnvFile(w.env)) {
		return nil
	}
	return errors.Join(err, os.Remove(w.envFile))
}
