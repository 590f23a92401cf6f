// Package doctest runs the commands of README.md and docs/*.md as they stand there, so that no reader is the first to try them.
//
// What lives here: the reading of fenced sh blocks (blocks_test.go), what stands for a placeholder (placeholders_test.go), the
// shell that runs them (shell_test.go) and the test (commands_test.go). There is nothing but tests.
//
// How a page is run: each page has one bash, whose folder holds bin/ with freshly built programs and a few files that the pages name.
// Beside it runs a real demo, whose demo.env the shell has read, as README tells a reader to. Each command has to end with status 0,
// or with N where its comment says "(exit N)". Three kinds of command are not run as they are:
//   - make TARGET is make -n TARGET: the target exists and its recipe can be read;
//   - bin/worker alone serves: it has to become ready, and to end with 0 on SIGTERM;
//   - a command in the background (&) has to listen where it says so before the next one runs.
//
// A comment directly before a block changes how it is run:
//
//	<!-- not run: needs npm -->                the reasons are a closed list (skipReasons)
//	<!-- run with: services of your own -->    in a second shell with an empty database and a Redis instead of the demo's
//	<!-- run with: services of your own and psql -->   the same, only where there is psql; also with redis-cli
//	<!-- run with: jq -->                      only where there is jq
package doctest
