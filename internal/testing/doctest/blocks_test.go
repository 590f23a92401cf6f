package doctest

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/trial"
)

// block is one fenced block of a page.
type block struct {
	line     int // line number of the fence, from 1
	language string
	skip     string // the reason after "not run:"
	with     string // after "run with:"
	commands []command
}

// command is text that a reader pastes and runs at once: one line, or several that belong together.
type command struct {
	line   int
	text   string // without its trailing comment
	status int    // the expected exit status, or untilStopped
}

// untilStopped is the status of a command that runs until the reader stops it.
const untilStopped = -1

// skipReasons lists the allowed reasons for not running a block. Each needs something outside this machine, or would
// run this test again.
var skipReasons = []string{
	"needs npm", "needs pip", "needs docker", "needs a browser", "needs the public network", "needs the old backend's database",
	"runs the tests", "takes hours",
}

const ownServices = "own services"

// optionalPrograms are programs that some machines lack, with functions that look for them. Without its program, a block
// marked "run with" is skipped.
var optionalPrograms = map[string]func() error{
	"jq":   func() error { _, err := exec.LookPath("jq"); return err },
	"psql": func() error { _, err := exec.LookPath("psql"); return err },
	"redis-cli": func() error {
		_, _, err := trial.FindRedisCLI()
		return err
	},
}

var (
	marker = regexp.MustCompile(`^<!-- (not run|run with): (.*) -->$`)
	status = regexp.MustCompile(`\(exit (\d)\)`)
	// shellWord matches the beginning of a line that only a shell can run.
	shellWord = regexp.MustCompile(`^(\$ |[A-Z_]+=\S* )*(bin/|\.ci/|make\b|docker |npm |npx |pip |go (test|build|run) )`)
)

// parsePage returns the blocks of a page. If there are faults, the page must be corrected before its commands can run.
func parsePage(page string) (blocks []block, faults []error) {
	fault := func(line int, format string, args ...any) {
		faults = append(faults, fmt.Errorf("line %d: "+format, append([]any{line}, args...)...))
	}
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		fence, opens := strings.CutPrefix(strings.TrimSpace(lines[i]), "```")
		if !opens {
			if m := marker.FindStringSubmatch(strings.TrimSpace(lines[i])); m != nil &&
				(i+1 == len(lines) || strings.TrimSpace(lines[i+1]) != "```sh") {
				fault(i+1, "the marker %q is not directly before a block of sh", m[0])
			}
			continue
		}
		b := block{line: i + 1, language: fence}
		if i > 0 {
			if m := marker.FindStringSubmatch(strings.TrimSpace(lines[i-1])); m != nil {
				b.mark(m[1], m[2], fault)
			}
		}
		var body []string
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
			body = append(body, lines[i])
		}
		switch {
		case i == len(lines):
			fault(b.line, "the block has no end")
		case b.language == "sh":
			b.commands = splitCommands(body, b.line+1)
			blocks = append(blocks, b)
		case b.language == "" || b.language == "bash" || b.language == "shell" || b.language == "console":
			if at := slices.IndexFunc(body, shellWord.MatchString); at >= 0 || b.language != "" {
				fault(b.line, "the block holds commands and is not called sh, so nobody would run them")
			}
		}
	}
	return blocks, faults
}

func (b *block) mark(kind, text string, fault func(line int, format string, args ...any)) {
	if kind == "not run" {
		if !slices.Contains(skipReasons, text) {
			fault(b.line-1, "not run: %q is not one of %q", text, skipReasons)
			return
		}
		b.skip = text
		return
	}
	for need := range strings.SplitSeq(text, " and ") {
		find, isProgram := optionalPrograms[need]
		switch {
		case need == ownServices:
			b.with = ownServices
		case !isProgram:
			fault(b.line-1, "run with: %q is neither %q nor one of the optional programs", need, ownServices)
		case find() != nil:
			b.skip = "needs " + need
		}
	}
}

// splitCommands splits a block where a shell would. An open quote, a loop, a backslash, a pipe or a here document
// continues on the next line.
func splitCommands(lines []string, first int) (out []command) {
	for i := 0; i < len(lines); i++ {
		if code, _ := cutComment(lines[i]); strings.TrimSpace(code) == "" {
			continue
		}
		c := command{line: first + i}
		text := lines[i]
		for i+1 < len(lines) && continues(text) {
			i++
			text += "\n" + lines[i]
		}
		code, comment := cutComment(text)
		c.text = strings.TrimSpace(code)
		if m := status.FindStringSubmatch(comment); m != nil {
			c.status, _ = strconv.Atoi(m[1]) // one digit
		}
		if strings.Contains(comment, "until Ctrl-C") {
			c.status = untilStopped
		}
		out = append(out, c)
	}
	return out
}

// cutComment splits text into code and trailing comment.
func cutComment(text string) (code, comment string) {
	var quote byte
	at := -1
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case at >= 0:
			if c == '\n' {
				at = -1
			}
		case quote == '\'':
			if c == '\'' {
				quote = 0
			}
		case c == '\\':
			i++
		case quote == '"':
			if c == '"' {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '#' && (i == 0 || strings.IndexByte(" \t\n", text[i-1]) >= 0):
			at = i
		}
	}
	if at < 0 {
		return text, ""
	}
	return text[:at], text[at:]
}

var hereDocument = regexp.MustCompile(`<<-?\s*['"]?(\w+)['"]?`)

// continues reports whether a shell would wait for another line.
func continues(text string) bool {
	if m := hereDocument.FindStringSubmatch(text); m != nil {
		return !strings.Contains(text+"\n", "\n"+m[1]+"\n")
	}
	if _, comment := cutComment(text); comment == "" && strings.HasSuffix(text, `\`) {
		return true
	}
	said, err := exec.Command("bash", "-n", "-c", text).CombinedOutput()
	return err != nil && (strings.Contains(string(said), "unexpected end of file") || strings.Contains(string(said), "unexpected EOF"))
}

func TestSplitCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, block string
		want        []command
	}{
		{"a line each", "make demo     # chain's end (Ctrl-C)\n\n# a comment's line\nmake test", []command{{1, "make demo", 0}, {4, "make test", 0}}},
		{"an open quote", "echo '{\"a\":1,\n  \"b\":\"#2\"}' | bin/enqueue\nls", []command{{1, "echo '{\"a\":1,\n  \"b\":\"#2\"}' | bin/enqueue", 0}, {3, "ls", 0}}},
		{"a backslash", "a \\\n  b\nc", []command{{1, "a \\\n  b", 0}, {3, "c", 0}}},
		{"a pipe", "a |\n  b # it's\nc", []command{{1, "a |\n  b", 0}, {3, "c", 0}}},
		{"a here document", "cat > f <<'END'\n# {\"a\": 'b\nEND\nc", []command{{1, "cat > f <<'END'\n# {\"a\": 'b\nEND", 0}, {4, "c", 0}}},
		{"a loop", "while a; do\n  b\ndone\nc", []command{{1, "while a; do\n  b\ndone", 0}, {4, "c", 0}}},
		{"no shell's text", "a )\nc", []command{{1, "a )", 0}, {2, "c", 0}}},
		{"a status", "bin/enqueue f   # refused (exit 3)", []command{{1, "bin/enqueue f", 3}}},
		{"a stream", "curl -N a  # until Ctrl-C", []command{{1, "curl -N a", untilStopped}}},
		{"no comment", "curl http://a/#b", []command{{1, "curl http://a/#b", 0}}},
	} {
		if got := splitCommands(strings.Split(c.block, "\n"), 1); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestParsePage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, page string
		want       string // blocks as line:commands:skip:with
		faults     int
	}{
		{"plain", "a\n```sh\nls\nls\n```\n", "2:2::", 0},
		{"left out", "<!-- not run: needs npm -->\n```sh\nnpm ci\n```\n", "2:1:needs npm:", 0},
		{"own services", "<!-- run with: own services -->\n```sh\nls\n```\n", "2:1::own services", 0},
		{"another language", "```json\n{}\n```\n```\naccepted <id>\n```\n", "", 0},
		{"an unknown reason", "<!-- not run: too slow -->\n```sh\nls\n```\n", "2:1::", 1},
		{"an unknown program", "<!-- run with: own services and sqlplus -->\n```sh\nls\n```\n", "2:1::own services", 1},
		{"a marker of nothing", "<!-- not run: needs npm -->\n\n```sh\nls\n```\n", "3:1::", 1},
		{"commands in disguise", "```\nbin/worker doctor\n```\n", "", 1},
		{"bash", "```bash\nls\n```\n", "", 1},
		{"no end", "```sh\nls\n", "", 1},
	} {
		blocks, faults := parsePage(c.page)
		var got []string
		for _, b := range blocks {
			got = append(got, fmt.Sprintf("%d:%d:%s:%s", b.line, len(b.commands), b.skip, b.with))
		}
		if strings.Join(got, " ") != c.want || len(faults) != c.faults {
			t.Errorf("%s: got %q and %v, want %q and %d faults", c.name, got, faults, c.want, c.faults)
		}
	}
}
