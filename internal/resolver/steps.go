package resolver

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/text"
)

// Step is one step of the way, for time lines.
type Step struct {
	// What: "tokenURI", "document", "registration", "binding", "endpoint", in this order as far as it went; "cache"
	// stands for all of them.
	What   string
	Source string // where it came from or who was asked, for people; no secrets
	Detail string // what was found, or why nothing was, for people; no secrets, one line
	Took   time.Duration
}

// trace notes the steps.
type trace struct {
	now   func() time.Time
	began time.Time // of the step that is going on
	steps []Step
}

func (w *trace) addStep(what, source, detail string) {
	now := w.now()
	w.steps = append(w.steps, Step{What: what, Source: source, Detail: detail, Took: now.Sub(w.began)})
	w.began = now
}

// describeURI is a tokenURI as people may see it.
func describeURI(uri string) string {
	s := strings.TrimFunc(uri, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	switch {
	case s == "":
		return "empty"
	case s[0] == '{':
		return fmt.Sprintf("the document itself, %d bytes", len(s))
	case len(s) >= 5 && strings.EqualFold(s[:5], "data:"):
		return fmt.Sprintf("a data URI of %d bytes", len(s))
	}
	return excerpt(withoutQuery(s))
}

// describeDocument says how much there is and what it is anchored by.
func describeDocument(d ipfs.Document) string {
	out := strconv.Itoa(len(d.Bytes)) + " bytes"
	if d.MediaType != "" {
		out += " labelled " + excerpt(d.MediaType)
	}
	switch d.Source {
	case ipfs.SourceCID:
		return out + ", verified against the CID"
	case ipfs.SourceIPNS:
		if d.DNSLink {
			return out + ", as DNS names it: not verified"
		}
		return out + ", verified against the name's signed record"
	case ipfs.SourceData:
		return out + ", on chain"
	}
	return out + ", as its server has it now: not verified"
}

// describeRegistration says what a registration holds: "services, 3 entries, 1 MCP".
func describeRegistration(reg erc8004.Registration, mcp int) string {
	var lists []string
	for _, s := range reg.Services {
		list, _, _ := strings.Cut(s.From, "[")
		if len(lists) == 0 || lists[len(lists)-1] != list {
			lists = append(lists, list)
		}
	}
	out := "no services"
	if len(lists) > 0 {
		out = fmt.Sprintf("%s, %s, %d MCP", strings.Join(lists, " and "),
			countNoun(len(reg.Services), "entry", "entries"), mcp)
	}
	if reg.Inactive() {
		out += ", inactive"
	}
	if reg.Cut {
		out += ", over the bounds: what was beyond them is left out"
	}
	return out
}

func countNoun(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// withoutQuery is a document's URI as people may see it.
func withoutQuery(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" {
		return s
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// excerpt keeps a stranger's text to one line that drives no terminal.
func excerpt(s string) string { return text.Excerpt(s, 240) }
