// Package buildinfo says which Herald a program is: the version that both programs print and log.
package buildinfo

import (
	"runtime"
	"runtime/debug"
)

// stamp is what the linker was told with -X: the Makefile gives it `git describe`, the Dockerfile its VERSION.
var stamp string

// Name names the commit or release alone: "v1.2.0-3-g1a2b3c4-dirty". MCP servers receive it as the client's version.
func Name() string {
	info, _ := debug.ReadBuildInfo()
	return nameSource(stamp, info)
}

// Version names the commit or release, and the Go version: "v1.2.0-3-g1a2b3c4-dirty (go1.26.8 linux/amd64)".
func Version() string {
	return Name() + " (" + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH + ")"
}

// nameSource takes the first that is known: the stamp, the module's version (`go install …@v1.2.0`, or made by Go from
// the commit), the commit alone. "devel" is a build of which nothing is known.
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
