package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestBOM writes the document of this test's own program twice.
func TestBOM(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := writeBOM(out, "v1.2.3", []string{program, program}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same programs give different bytes")
	}
	var d bom
	if err := json.Unmarshal(first.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	std := "pkg:golang/std@" + strings.TrimPrefix(runtime.Version(), "go")
	if !slices.ContainsFunc(d.Components, func(c component) bool { return c.PURL == std && c.Ref == std }) {
		t.Errorf("%s is missing in %+v", std, d.Components)
	}
	if d.Format != "CycloneDX" || d.SpecVersion != "1.6" || d.Metadata["component"].Version != "v1.2.3" {
		t.Errorf("got %+v", d)
	}
}

func TestBOMNeedsPrograms(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, paths := range [][]string{nil, {text}, {text + ".missing"}} {
		var out bytes.Buffer
		if err := writeBOM(&out, "v1.2.3", paths); err == nil || out.Len() > 0 {
			t.Errorf("%v: got %v and %d bytes", paths, err, out.Len())
		}
	}
}
