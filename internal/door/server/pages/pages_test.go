package pages

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestShowText(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"plain":                     "plain",
		"<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
		`" onclick='x'`:             "&#34; onclick=&#39;x&#39;",
		"a\u202eb":                  `a<span class="hidden-char" title="a character that is not seen">U+202E</span>b`,
		"\x00\x1b[31m":              `<span class="hidden-char" title="a character that is not seen">U+0000</span><span class="hidden-char" title="a character that is not seen">U+001B</span>[31m`,
		"\u200b\ufeff\u2028":        strings.Repeat(`<span class="hidden-char" title="a character that is not seen">U+`, 1) + `200B</span><span class="hidden-char" title="a character that is not seen">U+FEFF</span><span class="hidden-char" title="a character that is not seen">U+2028</span>`,
		"two\nlines\t.":             "two\nlines\t.",
		"\xff\ufffd":                `<span class="hidden-char" title="a byte that is no UTF-8">?</span>` + "\ufffd",
		"👩‍👩‍👧 ❤️":                  "👩‍👩‍👧 ❤️",
	} {
		if got := string(showText(s)); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

// FuzzShowText: hostile text never creates an element or an attribute.
func FuzzShowText(f *testing.F) {
	for _, s := range []string{"<b>", "&lt;", "\x00", "\u202e", `"'`, "\xff", "x\ny"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, html := range []string{string(showText(s)), string(foldText(s)), string(foldJSON(s, json.RawMessage(s)))} {
			rest := html
			for _, own := range []string{`<span class="hidden-char" title="a character that is not seen">`, `<span class="hidden-char" title="a byte that is no UTF-8">`,
				"</span>", "<details><summary>", `</summary><pre tabindex="0">`, "</pre></details>", " <small>", "</small>"} {
				rest = strings.ReplaceAll(rest, own, "")
			}
			if strings.ContainsAny(rest, "<>\"'") || strings.ContainsRune(rest, '\u202e') || strings.ContainsRune(rest, 0) {
				t.Errorf("%q: %s", s, html)
			}
		}
	})
}

func TestFold(t *testing.T) {
	t.Parallel()
	if got := string(foldText("short")); got != "short" {
		t.Error(got)
	}
	long := strings.Repeat("x", maxShown+7)
	got := string(foldText(long))
	if !strings.HasPrefix(got, "<details>") || !strings.Contains(got, "… (7 more characters") || strings.Count(got, "x") > maxShown+maxInline+10 {
		t.Error(got[:100])
	}
	if got := string(foldJSON("Job", json.RawMessage(`{"a":1}`))); !strings.Contains(got, "&#34;a&#34;: 1\n") {
		t.Error(got)
	}
	if got := foldJSON("Job", nil); got != "" {
		t.Error(got)
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	show := func(a store.Attempt) string {
		var out []string
		for _, s := range listSteps(a) {
			out = append(out, s.State)
		}
		return strings.Join(out, " ")
	}
	for want, a := range map[string]store.Attempt{
		"done done done done done done done done":           {Stage: "call", Outcome: "delivered"},
		"done done failed ahead ahead ahead ahead ahead":    {Stage: "resolve", Outcome: "waiting"},
		"running ahead ahead ahead ahead ahead ahead ahead": {Stage: "claim"},
		"done done done done done done failed ahead":        {Stage: "call", Outcome: "dead"},
	} {
		if got := show(a); got != want {
			t.Errorf("%+v: %s, want %s", a, got, want)
		}
	}
}

func TestBars(t *testing.T) {
	t.Parallel()
	at := time.Now()
	svg := string(drawBars([]operator.Minute{{At: at, Outcomes: map[store.Status]int64{store.Delivered: 30, store.Dead: 10}},
		{At: at, Outcomes: map[store.Status]int64{store.Waiting: 20}}}))
	for _, want := range []string{`at most 40 a minute`, `class="good" x="1" y="15.0" width="8" height="45.0"`, `class="bad" x="1" y="0.0" width="8" height="15.0"`,
		`class="wait" x="11" y="30.0" width="8" height="30.0"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("%s lacks %s", svg, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{showCount(1234567), "1\u202f234\u202f567"}, {showCount(12), "12"}, {showCount(-1234), "-1\u202f234"},
		{showSeconds(0.0004), "0 ms"}, {showSeconds(0.05), "50 ms"}, {showSeconds(1.26), "1.3 s"}, {showSeconds(61.0), "1 min 1 s"},
		{showSeconds(7300.0), "2 h 1 min"}, {showSeconds(200000.0), "2 days"}} {
		heraldtest.Equal(t, "c[0]", c[0], c[1])
	}
	if got := fmt.Sprint(showTime((*time.Time)(nil))); got != "–" {
		t.Error(got)
	}
}
