// Command mcpconformance runs the Model Context Protocol's conformance suite against internal/mcpcall (through
// internal/testing/conformance) and prints a line for each scenario:
//
//	mcpconformance                     all scenarios of both revisions, about two minutes
//	mcpconformance -scenario ^auth/       only scenarios whose name matches the expression
//	mcpconformance -v                     also prints every check that did not succeed, expected or not
//
// The suite and the Node.js that runs it are installed from npm at pinned versions, into the user's cache. The suite
// lists the scenarios. Each scenario runs separately. It passes if at least one of its checks succeeded, no check
// failed or warned, and the client exited without an error. A scenario without checks counts as failed, although the
// suite counts it as passed.
//
// Scenarios that a revision lists but does not require (extensions, later additions) are run too, as are those in
// alsoRun.
//
// mayFail lists the scenarios that may fail, with the failing check and the reason. It is an error if such a
// scenario passes, or if it fails without that check.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/agentherald/herald/scripts/script"
)

const (
	suitePackage = "@modelcontextprotocol/conformance"
	suiteVersion = "0.2.0-alpha.12"
	listTime     = time.Minute
)

// revisions are the revisions whose scenarios are run.
var revisions = []string{"2025-11-25", "2026-07-28"}

// alsoRun contains scenarios that are run with a revision even if its list lacks them: the extension with which a
// delivery obtains its tokens, and the discovery of 2025-03-26, which no revision of the suite requires but old
// agents still use.
var alsoRun = map[string][]string{
	"2025-11-25": {"auth/client-credentials-basic", "auth/client-credentials-jwt", "auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"},
	"2026-07-28": {"auth/client-credentials-basic", "auth/client-credentials-jwt"},
}

// The reasons of mayFail.
const (
	nobodyToAsk   = "A delivery has nobody to ask: Herald declares no elicitation, so a foreign agent cannot get input out of it."
	nobodysToken  = "An extension that no revision requires: it exchanges a signed-in person's identity token, and a delivery is nobody's."
	workloadToken = "An extension that no revision requires: its assertion is a platform's workload token, and Herald has none; private_key_jwt " +
		"is the way without a shared secret."
	noDPoP = "An optional extension that no client library offers yet: Herald takes bearer tokens only, and sends each to one origin."
)

// mayFail returns the scenarios that may fail, with the failing check and the reason. If one of them passes, the run fails until
// it is removed here.
func mayFail() map[key]expectation {
	all := map[key]expectation{{"2025-11-25", "elicitation-sep1034-client-defaults"}: {"client-elicitation-sep1034-general", nobodyToAsk}}
	for _, revision := range revisions {
		all[key{revision, "auth/enterprise-managed-authorization"}] = expectation{"complete-flow-token-exchange", nobodysToken}
		all[key{revision, "auth/wif-jwt-bearer"}] = expectation{"wif-assertion-verified", workloadToken}
		all[key{revision, "auth/dpop"}] = expectation{"sep-1932-client-token-request-proof", noDPoP}
		all[key{revision, "auth/dpop-nonce"}] = expectation{"sep-1932-client-token-request-proof", noDPoP}
	}
	return all
}

func main() {
	only := flag.String("scenario", ".", "run only scenarios whose name matches this `expression`")
	verbose := flag.Bool("v", false, "tell every check that did not succeed")
	flag.Parse()
	script.Run("conformance", func(ctx context.Context) { run(ctx, script.Must(regexp.Compile(*only)), *verbose, *only == ".") })
}

func run(ctx context.Context, match *regexp.Regexp, verbose, whole bool) {
	expected := mayFail()
	scratch := script.Must(os.MkdirTemp("", "herald-conformance-"))
	defer script.Close(func() error { return os.RemoveAll(scratch) })
	s := prepare(ctx, scratch)
	var all []outcome
	for _, revision := range revisions {
		for _, name := range s.list(ctx, revision) {
			if !match.MatchString(name) {
				continue
			}
			o := s.run(ctx, revision, name)
			o.may = expected[key{revision, name}]
			delete(expected, key{revision, name})
			fmt.Println(o.line())
			if _, isExpected := o.judge(); verbose || !isExpected {
				fmt.Print(o.details())
			}
			all = append(all, o)
		}
	}
	script.Check(verdict(all, expected, whole))
}

// suite runs scenarios.
type suite struct {
	node, program string // the suite's
	client        string // the client under test
	scratch       string
	runs          int // number of runs so far, for the names of the folders
}

// prepare installs the suite and builds the client.
func prepare(ctx context.Context, scratch string) *suite {
	packages := script.Must(npm.Install(ctx, suitePackage+"@"+suiteVersion))
	s := &suite{node: script.Must(npm.Node(ctx)), program: packages.Path(suitePackage, "dist", "index.js"), client: filepath.Join(scratch, "client"),
		scratch: scratch}
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", s.client, "./internal/testing/conformance")
	if out, err := build.CombinedOutput(); err != nil {
		script.Fail("build the client (run this at the top of the repository): %w\n%s", err, out)
	}
	return s
}

// list returns a revision's client scenarios from the suite, followed by those in alsoRun that are missing.
func (s *suite) list(ctx context.Context, revision string) []string {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.node, s.program, "list", "--client", "--requirements", revision)
	cmd.Env = npm.Environment()
	out, err := cmd.CombinedOutput()
	names := scenariosOf(string(out))
	if err != nil || len(names) == 0 {
		script.Fail("the suite lists no scenario for %s (%v):\n%s", revision, err, out)
	}
	for _, name := range alsoRun[revision] {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
