package outcome

import (
	"cmp"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/base/netguard"
)

// Subject describes the delivery for which NextStep is asked, as far as it is known. No field is trusted, because
// agents choose their own endpoints.
type Subject struct {
	Delivery string // id; empty: there is no delivery, for example in `worker agent probe`
	ChainID  uint64
	Agent    string // as arguments of a command: CHAIN:AGENT, and --registry if it needs one; empty: unknown
	Registry string // the agent's, because other registries may have agents with its number; empty: unknown
	Endpoint string // in the form for display
	Tool     string // the tool that the job names
	Listed   bool   // the agent has an entry in the servers file
	Over     bool   // the delivery is final and will not be tried again
	Shower   string // "probe" or "resolve": the command that shows the step; the step must not name this command
}

// NextStep returns a text for the operator: how to proceed with a delivery that ended, is held or waits for the reason
// r. The text is one sentence with a setting or a command to copy, or "nothing to do: …". For an unknown reason it
// returns "".
//
// Callers compute the text when they show it and do not store it, because the right advice may change later.
func NextStep(r Reason, s Subject) string {
	of := rows[r]
	switch {
	case s.Listed && of.listed != "":
		return s.fill(r, of.listed)
	case s.Over && of.over != "":
		return s.fill(r, of.over)
	}
	return s.fill(r, of.step)
}

// part matches a part of a next step that is in braces: {text|alternative}. value matches a placeholder, such as
// @replay.
var (
	part  = regexp.MustCompile(`\{([^{}|]*)\|?([^{}]*)\}`)
	value = regexp.MustCompile(`@[a-z]+`)
)

// fill removes the braces of each part of the text, and replaces placeholders in it, such as @replay, by values of s.
// If a value is unknown, the part's alternative replaces the part. Without an alternative, the part is omitted.
func (s Subject) fill(r Reason, text string) string {
	values := map[string]string{"@chain": strconv.FormatUint(s.ChainID, 10), "@agent": s.Agent, "@tool": s.Tool,
		"@delivery": s.Delivery, "@replay": s.replay(r), "@probe": s.show("probe"), "@resolve": s.show("resolve")}
	if s.Agent != "" {
		values["@credential"] = s.Agent + s.originOption()
	}
	return part.ReplaceAllStringFunc(text, func(found string) string {
		of := part.FindStringSubmatch(found)
		for _, name := range value.FindAllString(of[1], -1) {
			if values[name] == "" {
				return of[2]
			}
		}
		return value.ReplaceAllStringFunc(of[1], func(name string) string { return values[name] })
	})
}

// replay returns the command that replays the delivery or, if s names none, all deliveries of the agent that ended for
// the reason. It returns "" if s names neither.
func (s Subject) replay(r Reason) string {
	switch {
	case s.Delivery != "":
		return "worker delivery replay " + s.Delivery
	case s.Agent != "":
		agent := s.Agent
		if s.Registry != "" {
			name, _, _ := strings.Cut(agent, " ")
			agent = name + " --registry " + s.Registry
		}
		return "worker delivery replay --agent " + agent + " --reason " + string(r) + " --yes"
	}
	return ""
}

// show returns the command "worker agent verb" for the agent, or "" if the step is part of that command's own output.
func (s Subject) show(verb string) string {
	if verb == s.Shower {
		return ""
	}
	return "worker agent " + verb + " " + cmp.Or(s.Agent, "CHAIN:AGENT")
}

// plainURL matches a URL that is safe in a shell without quotes, and quotedURL one that is safe in single quotes. An
// agent's URL may contain "$(…)".
var (
	plainURL = regexp.MustCompile(`^https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?` +
		`(?:/[A-Za-z0-9/._~%@:+=,-]*)?$`)
	quotedURL = regexp.MustCompile(`^https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?/[!-&(-~]*$`)
)

// maxTyped is the number of bytes above which ShellURL refuses a URL, because it is too long to be copied from a
// terminal.
const maxTyped = 300

// ShellURL returns a URL for an operator to copy into a command, in single quotes if the shell needs them, or "" if the
// URL is too long or unsafe to copy.
func ShellURL(rawURL string) string {
	switch {
	case len(rawURL) > maxTyped:
		return ""
	case plainURL.MatchString(rawURL):
		return rawURL
	case quotedURL.MatchString(rawURL):
		return "'" + rawURL + "'"
	}
	return ""
}

// OriginOption returns the option " --origin URL" of `worker token set` and `login` for an operator to copy, or "" if
// ShellURL refuses the URL. Without the option, the command asks for the origin.
func OriginOption(rawURL string) string {
	if typed := ShellURL(rawURL); typed != "" {
		return " --origin " + typed
	}
	return ""
}

// originOption returns OriginOption for the agent's endpoint (Subject.Endpoint, which has no query).
func (s Subject) originOption() string {
	u, err := url.Parse(s.Endpoint)
	if err != nil || u.Host == "" {
		return ""
	}
	path := u.EscapedPath()
	if path == "/" {
		path = ""
	}
	return OriginOption(string(netguard.OriginOf(u)) + path)
}
