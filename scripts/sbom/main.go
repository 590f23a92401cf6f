// Command sbom prints the software bill of materials of Go programs as CycloneDX JSON, for `make dist`.
//
//	sbom -version v0.1.0 worker enqueue
//
// It reads the modules that the linker recorded in each program, as `go version -m` does, so the list contains all and only
// the linked modules. The output has no time and no random number: the same programs give the same bytes.
package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/agentherald/herald/scripts/script"
)

func main() {
	version := flag.String("version", "", "version of the product")
	flag.Parse()
	script.Run("sbom", func(context.Context) { script.Check(writeBOM(os.Stdout, *version, flag.Args())) })
}

// bom is a CycloneDX document, with the members that Herald has values for.
type bom struct {
	Format      string               `json:"bomFormat"`
	SpecVersion string               `json:"specVersion"`
	Version     int                  `json:"version"`
	Metadata    map[string]component `json:"metadata"`
	Components  []component          `json:"components"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// writeBOM writes the document for Herald, whose programs are the files at paths.
func writeBOM(out io.Writer, version string, paths []string) error {
	if version == "" || len(paths) == 0 {
		return fmt.Errorf("-version and the paths of the programs are required")
	}
	modules := map[string]component{} // by purl
	main := ""
	for _, path := range paths {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the modules of %s: %w", path, err)
		}
		main = info.Main.Path
		add := func(path, version, sum string) {
			c := newComponent("library", path, version)
			if sum != "" {
				c.Properties = []property{{"go:sum", sum}}
			}
			modules[c.PURL] = c
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"), "")
		for _, m := range info.Deps {
			if strings.HasPrefix(m.Path, main+"/") {
				continue // a module of this repository
			}
			if m.Replace != nil {
				m = m.Replace
			}
			add(m.Path, m.Version, m.Sum)
		}
	}
	product := newComponent("application", main, version)
	product.Name = "herald"
	d := bom{Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Metadata: map[string]component{"component": product}}
	for _, purl := range slices.Sorted(maps.Keys(modules)) {
		d.Components = append(d.Components, modules[purl])
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(d)
}

// newComponent returns the component for a Go module, named by its package URL.
func newComponent(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
}
