package resolver

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
)

// Step describes one step of a resolution, for display. Its texts contain no secrets.
type Step struct {
	// What names the step. The steps of a resolution are tokenURI, document, registration, binding and
	// endpoint, in this order, up to the step that failed. The only step of a cached result is cache.
	What   string
	Source string // where the data of the step came from
	Detail string // the result or the error of the step, one line
	Took   time.Duration
}

// trace collects the steps of a resolution.
type trace struct {
	now   func() time.Time
	began time.Time // when the current step began
	steps []Step
}

// addStep appends a step. Its Took is the time since the previous step was appended.
func (w *trace) addStep(what, source, detail string) {
	now := w.now()
	w.steps = append(w.steps, Step{What: what, Source: source, Detail: detail, Took: now.Sub(w.began)})
	w.began = now
}

// describeURI describes a tokenURI in one line.
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

// describeDocument describes the size of a document and how its bytes were verified.
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

// describeRegistration describes a registration document with mcp MCP entries, such as "services, 3 entries, 1 MCP".
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
			text.Count(len(reg.Services), "entry", "entries"), mcp)
	}
	if reg.Inactive() {
		out += ", inactive"
	}
	if reg.Cut {
		out += ", over the limits: the rest is dropped"
	}
	return out
}

// withoutQuery returns a document's URI without user information, query and fragment.
func withoutQuery(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" {
		return s
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// excerpt shortens untrusted text to one line of about 240 bytes without control characters.
func excerpt(s string) string { return text.Excerpt(s, 240) }
