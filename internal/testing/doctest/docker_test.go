package doctest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImageGetsItsFiles checks that .dockerignore includes each file that the Dockerfile copies, and the go.mod of each
// module of this repository that the main module needs. Tests cannot run Docker.
func TestImageGetsItsFiles(t *testing.T) {
	t.Parallel()
	included := strings.Fields(readFile(t, ".dockerignore"))
	var needed []string
	for line := range strings.Lines(readFile(t, "Dockerfile")) {
		words := strings.Fields(line)
		if len(words) > 2 && words[0] == "COPY" && !strings.HasPrefix(words[1], "--from=") && words[1] != "." {
			needed = append(needed, words[1:len(words)-1]...)
		}
	}
	for line := range strings.Lines(readFile(t, "go.mod")) {
		if _, folder, ok := strings.Cut(strings.TrimSpace(line), " => ./"); ok {
			needed = append(needed, folder+"/go.mod")
		}
	}
	if len(needed) < 4 {
		t.Fatalf("found only %q", needed)
	}
	for _, file := range needed {
		if !slices.ContainsFunc(included, func(line string) bool {
			folder, ok := strings.CutPrefix(line, "!")
			return ok && (file == folder || strings.HasPrefix(file, folder+"/"))
		}) {
			t.Errorf(".dockerignore excludes %s, which the image is built from", file)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
