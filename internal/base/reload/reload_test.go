package reload

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestNamedFiles checks that a change of a file that the file names counts as a change, and that such a file may be
// missing for a while.
func TestNamedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, named := filepath.Join(dir, "policy"), filepath.Join(dir, "clients")
	write := func(path, content string) {
		t.Helper()
		heraldtest.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	write(path, "clients")
	write(named, "a")
	var log bytes.Buffer
	changes := ""
	f, err := Open(Config[string]{Name: "policy file", Path: path, Read: os.ReadFile, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Parse: func(raw []byte, read func(string) ([]byte, error)) (string, error) {
			content, err := read(filepath.Join(dir, string(raw)))
			if string(content) == "broken" {
				err = errors.New("broken")
			}
			return string(content), err
		},
		Changed: func(before, after string) bool {
			changes += before + after + " "
			return before != after
		}})
	heraldtest.Must(t, err)
	look := func(want string) {
		t.Helper()
		for range 3 {
			f.ReloadIfChanged()
		}
		heraldtest.Equal(t, "in force", f.Get(), want)
	}
	look("a")
	write(named, "bb")
	look("bb")
	heraldtest.Must(t, os.Remove(named))
	look("bb")
	write(named, "bb")
	look("bb")
	write(named, "broken")
	look("bb")
	write(named, "ccc")
	look("ccc")
	heraldtest.Equal(t, "changes", changes, "abb bbbb bbccc ")
	if got := log.String(); strings.Count(got, "is invalid") != 2 || strings.Count(got, "is valid again") != 1 {
		t.Errorf("it says %s", got)
	}
}
