// Package doctest runs the commands of README.md and of the pages below docs exactly as they are written, so that
// they keep working. It also checks the links of all pages, and the files that comments name.
//
// The package contains only tests: parsing of fenced sh blocks (blocks_test.go), values for placeholders
// (placeholders_test.go), the shell that runs the commands (shell_test.go), the test itself (commands_test.go), and the
// checks of links and names (links_test.go, files_test.go, guarantees_test.go).
//
// Each page runs in its own bash. The working folder contains bin/ with freshly built programs, and a few files that
// the pages mention. A real demo runs at the same time, and the shell has loaded its demo.env as README describes. Each
// command must exit with status 0, or with N if its comment says "(exit N)". Four kinds of command run differently:
//   - make TARGET runs as make -n TARGET, which checks that the target exists and that its recipe can be parsed;
//   - bin/worker without arguments must become ready, and must exit with status 0 on SIGTERM;
//   - a command in the background (&) must listen on the address that it names before the next command runs;
//   - a command whose comment says "until Ctrl-C" must write something, and is then stopped.
//
// A comment directly before a block changes how the block runs:
//
//	<!-- not run: needs npm -->                the reasons are a closed list (skipReasons)
//	<!-- run with: own services -->    in a second shell with an empty database and a Redis instead of the demo's
//	<!-- run with: own services and psql -->   the same, only if psql is installed; also with redis-cli
//	<!-- run with: jq -->                      only if jq is installed; also with psql, or jq and psql
package doctest
