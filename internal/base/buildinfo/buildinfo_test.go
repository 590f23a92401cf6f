package buildinfo

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestNameSource(t *testing.T) {
	t.Parallel()
	commit := []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "1a2b3c4d5e6f7a8b9c0d"}}
	changed := append(commit[:2:2], debug.BuildSetting{Key: "vcs.modified", Value: "true"})
	of := func(version string, settings []debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}, Settings: settings}
	}
	for name, c := range map[string]struct {
		stamp string
		info  *debug.BuildInfo
		want  string
	}{
		"make build, docker build": {"v1.2.0-3-g1a2b3c4-dirty", of("(devel)", nil), "v1.2.0-3-g1a2b3c4-dirty"},
		"a stamp wins":             {"v1.2.0", of("v1.1.0", commit), "v1.2.0"},
		"go install of a version":  {"", of("v1.2.0", nil), "v1.2.0"},
		"go build in a clone":      {"", of("v0.0.0-20260101000000-1a2b3c4d5e6f+dirty", changed), "v0.0.0-20260101000000-1a2b3c4d5e6f+dirty"},
		"the commit alone":         {"", of("(devel)", commit), "1a2b3c4d5e6f"},
		"changed since":            {"", of("", changed), "1a2b3c4d5e6f-dirty"},
		"nothing known":            {"", of("(devel)", nil), "devel"},
		"no build information":     {"", nil, "devel"},
	} {
		heraldtest.Equal(t, name, nameSource(c.stamp, c.info), c.want)
	}
	if v := Version(); !strings.HasSuffix(v, " ("+runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH+")") {
		t.Errorf("%q", v)
	}
}
