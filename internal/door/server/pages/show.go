package pages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
)

const (
	maxInline = 240   // characters of a stranger's text that are shown before the rest is folded
	maxShown  = 20000 // maximum of its characters on a page
)

func (p *Pages) templateFuncs(links map[string]string) template.FuncMap {
	return template.FuncMap{
		"static": func(name string) string { return links[name] },
		"text":   showText, "fold": foldText, "cause": foldCause, "json": foldJSON, "pretty": showJSON,
		"brief": showBrief, "plain": replaceHidden,
		"time": showTime, "ago": showAgo, "seconds": showSeconds, "millis": showMillis, "count": showCount,
		"counted": countWords,
		"explore": p.explore,
		"link":    linkAgent, "short": shortenHex, "chain": nameChain, "client": linkClient,
		"listing": func(pairs ...string) string { return "/deliveries?" + encodePairs(pairs) },
		"join":    strings.Join,
		"of":      func(counts map[outcome.Status]int64, s outcome.Status) int64 { return counts[s] },
		"needURL": needURL, "matchURL": matchURL, "changed": describeChange, "filter": describeFilter,
		"words": func(s string) string { return strings.ReplaceAll(s, "_", " ") },
	}
}

// encodePairs returns a query of names and values. It omits empty values.
func encodePairs(pairs []string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q.Encode()
}

func agentURL(chain uint64, id, registry string) string {
	return "/agents/" + erc8004.FormatAgent(chain, id) + "?" + url.Values{"registry": {registry}}.Encode()
}

// maxName bounds the characters of an agent's name on a page.
const maxName = 40

// linkAgent links to an agent by its name, if it has one, and its id. A long id is shortened.
func linkAgent(chain uint64, id, registry, name string) template.HTML {
	begin := `<a href="` + html.EscapeString(agentURL(chain, id, registry)) + `"`
	if len(id) > 14 {
		id = id[:6] + "…" + id[len(id)-4:]
	}
	shown := showText(fmt.Sprintf("%d:%s", chain, id))
	if strings.TrimSpace(name) == "" { // a link of spaces could not be clicked
		return template.HTML(begin + ` class="id">` + string(shown) + `</a>`)
	}
	return template.HTML(begin + `>` + string(showBrief(name)) + `</a> <small class="id">` + string(shown) + `</small>`)
}

// shortenHex returns the beginning and the end of an address or hash, as in 0xdEcB…Ddd2.
func shortenHex(s string) string {
	if len(s) <= 12 {
		return s
	}
	return s[:6] + "…" + s[len(s)-4:]
}

// linkClient links to the page of a client's address.
func linkClient(address string) template.HTML {
	if address == "" {
		return "–"
	}
	return template.HTML(`<a class="id" href="/clients/` + html.EscapeString(url.PathEscape(address)) + `">` +
		string(showText(shortenHex(address))) + `</a>`)
}

// nameChain returns a chain's name and id.
func nameChain(id uint64) string {
	known, _ := erc8004.FindChain(id)
	return strings.TrimSpace(fmt.Sprintf("%s %d", known.Name, id))
}

// isHidden reports whether a character is invisible or changes how others are displayed: control and format characters,
// line and paragraph separators, fillers, private-use characters, surrogates and noncharacters.
func isHidden(r rune) bool {
	switch r {
	case '\n', '\t':
		return false
	case '\u200d', '\ufe0f': // parts of emoji
		return false
	}
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs) ||
		unicode.In(r, unicode.Noncharacter_Code_Point, unicode.Other_Default_Ignorable_Code_Point)
}

// replaceHidden returns a stranger's text for the title of a page, where no element can show hidden characters.
func replaceHidden(s string) string {
	return strings.Map(func(r rune) rune {
		if isHidden(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// maxMarks bounds the combining marks and joiners of one character. More would cover the lines around it, and a browser
// cannot wrap them.
const maxMarks = 4

// rightToLeft has the blocks of scripts that are written from right to left. They reorder numbers that follow them.
var rightToLeft = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x590, Hi: 0x8ff, Stride: 1}, {Lo: 0xfb1d, Hi: 0xfdff, Stride: 1},
		{Lo: 0xfe70, Hi: 0xfefc, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0x10800, Hi: 0x10fff, Stride: 1}, {Lo: 0x1e800, Hi: 0x1efff, Stride: 1}},
}

// showText returns a stranger's text as HTML, with its hidden characters made visible. It isolates text that is written
// from right to left.
func showText(v any) template.HTML {
	s := fmt.Sprint(v)
	var out strings.Builder
	marks := 0
	for i, r := range s {
		if marks++; r != '\u200d' && !unicode.In(r, unicode.Mn, unicode.Me) {
			marks = 0
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\ufffd"):
			out.WriteString(`<span class="hidden-char" title="a byte that is no UTF-8">?</span>`)
		case marks > maxMarks:
			if marks == maxMarks+1 {
				out.WriteString(`<span class="hidden-char" title="more marks on one character">…</span>`)
			}
		case isHidden(r):
			fmt.Fprintf(&out, `<span class="hidden-char" title="a character that is not seen">U+%04X</span>`, r)
		default:
			out.WriteString(html.EscapeString(string(r)))
		}
	}
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.Is(rightToLeft, r) }) {
		return template.HTML("<bdi>" + out.String() + "</bdi>") //nolint:gosec // every character was escaped
	}
	return template.HTML(out.String()) //nolint:gosec // every character was escaped
}

// foldText returns a stranger's text as HTML, folded if it is long.
func foldText(v any) template.HTML {
	s := fmt.Sprint(v)
	if utf8.RuneCountInString(s) <= maxInline && !strings.Contains(s, "\n") {
		return showText(s)
	}
	first := []rune(s)
	head := string(first[:min(len(first), maxInline)])
	return `<details><summary>` + showText(strings.ReplaceAll(head, "\n", " ")+"…") +
		template.HTML(` <small>`+countWords(len(first), "character", "characters")+`</small>`) +
		`</summary><pre tabindex="0">` + showText(cutShown(first)) + `</pre></details>`
}

// namedCommand is a command in the text of an error, in escaped HTML.
var namedCommand = regexp.MustCompile("`(worker [^`<>]*)`")

// foldCause returns an error as foldText does, with the commands that it names in the font of code.
func foldCause(v any) template.HTML {
	//nolint:gosec // escaped
	return template.HTML(namedCommand.ReplaceAllString(string(foldText(v)), "<code>$1</code>"))
}

func cutShown(s []rune) string {
	if len(s) <= maxShown {
		return string(s)
	}
	return string(s[:maxShown]) + "… (" +
		text.Count(len(s)-maxShown, "more character", "more characters") + ": the API has all)"
}

// showBrief returns the beginning of a stranger's text as HTML, on one line.
func showBrief(v any) template.HTML {
	s := []rune(strings.ReplaceAll(fmt.Sprint(v), "\n", " "))
	if len(s) > maxName {
		return showText(string(s[:maxName]) + "…")
	}
	return showText(string(s))
}

// foldJSON returns indented JSON, folded under a title.
func foldJSON(title string, raw json.RawMessage) template.HTML {
	if len(raw) == 0 {
		return ""
	}
	return `<details><summary>` + showText(title) +
		template.HTML(fmt.Sprintf(` <small>%s</small>`, showBytes(len(raw)))) +
		`</summary>` + showJSON(raw) + `</details>`
}

// showJSON returns indented JSON.
func showJSON(raw json.RawMessage) template.HTML {
	var out bytes.Buffer
	if json.Indent(&out, raw, "", "  ") != nil {
		out.Write(raw)
	}
	return `<pre tabindex="0">` + showText(cutShown([]rune(out.String()))) + `</pre>`
}

func showBytes(n int) string {
	if n < 1024 {
		return text.Count(n, "byte", "bytes")
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/1024)
}

// derefPointer returns the target of a pointer, nil for a nil pointer, and other values as they are. Templates pass
// pointers on as they are.
func derefPointer(v any) any {
	p := reflect.ValueOf(v)
	switch {
	case p.Kind() != reflect.Pointer:
		return v
	case p.IsNil():
		return nil
	}
	return p.Elem().Interface()
}

// showTime returns a <time> element in UTC, to the second.
func showTime(v any) template.HTML {
	t, _ := derefPointer(v).(time.Time)
	if t = t.UTC(); t.IsZero() {
		return "–"
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s">%s</time>`,
		t.Format(time.RFC3339Nano), t.Format("2006-01-02 15:04:05")))
}

// showAgo returns how long ago a time was, or how far it is in the future.
func showAgo(v any) string {
	t, _ := derefPointer(v).(time.Time)
	if t.IsZero() {
		return "never"
	}
	d := time.Since(t)
	if d < 0 {
		return "in " + showSeconds((-d).Seconds())
	}
	return showSeconds(d.Seconds()) + " ago"
}

// showSeconds returns a duration in its two largest units.
func showSeconds(v any) string {
	s, known := derefPointer(v).(float64)
	switch {
	case !known:
		return "–"
	case s < 0.0995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 9.95:
		return fmt.Sprintf("%.1f s", s)
	case s < 60:
		return fmt.Sprintf("%.0f s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", int(s)/60, int(s)%60)
	case s < 48*3600:
		return fmt.Sprintf("%d h %d min", int(s)/3600, int(s)%3600/60)
	}
	return fmt.Sprintf("%d days", int(s)/86400)
}

func showMillis(v any) string {
	switch v := derefPointer(v).(type) {
	case int:
		return showSeconds(float64(v) / 1000)
	case float64:
		return showSeconds(v / 1000)
	}
	return "–"
}

// showCount groups digits by threes.
func showCount(v any) string {
	s := fmt.Sprint(derefPointer(v))
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// countWords returns a count with the words for one or for many.
func countWords(v any, one, many string) string {
	n := showCount(v)
	if n == "1" {
		many = one
	}
	return n + " " + many
}

// explore links to the chain's block explorer; kind is tx, block or address. Without an explorer it returns only the
// text.
func (p *Pages) explore(chain uint64, kind, what string) template.HTML {
	if what == "" {
		return "–"
	}
	explorer := p.Operator.Settings.Explorer(chain)
	if explorer == "" {
		return showText(what)
	}
	return template.HTML(fmt.Sprintf(`<a href="%s" rel="noreferrer noopener">%s</a>`,
		html.EscapeString(explorer+"/"+kind+"/"+url.PathEscape(what)), showText(what)))
}
