// Package buildinfo returns the version of Herald, which all programs print and log.
package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// stamp is set by the linker (-X): to `git describe` in the Makefile, and to VERSION in the Dockerfile.
var stamp string

// Name returns the commit or release, such as "v1.2.0-3-g1a2b3c4-dirty". MCP servers receive it as the client's
// version.
func Name() string {
	info, _ := debug.ReadBuildInfo()
	return nameSource(stamp, info)
}

// Version returns the commit or release and the Go version, such as "v1.2.0-3-g1a2b3c4-dirty (go1.26.8 linux/amd64)".
func Version() string {
	return Name() + " (" + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

// nameSource returns the first of these that is known: the stamp, the module's version (from `go install …@v1.2.0`, or
// derived from the commit by Go), the commit. If none is known it returns "devel".
func nameSource(stamp string, info *debug.BuildInfo) string {
	if stamp != "" {
		return stamp
	}
	if info == nil {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return "devel"
	}
	return revision + dirty
}
