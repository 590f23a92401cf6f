package pages

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
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
		"\u3164\u034f":              `<span class="hidden-char" title="a character that is not seen">U+3164</span><span class="hidden-char" title="a character that is not seen">U+034F</span>`,
		"လျှို့ဝှက် लक्ष्मी ที่ e\u0323\u0302 ❤️‍🔥": "လျှို့ဝှက် लक्ष्मी ที่ e\u0323\u0302 ❤️‍🔥",
		"שלום 12": "<bdi>שלום 12</bdi>",
		"z" + strings.Repeat("\u0301", 6) + "a\u0301": "z" + strings.Repeat("\u0301", 4) + `<span class="hidden-char" title="more marks on one character">…</span>a` + "\u0301",
	} {
		heraldtest.Equal(t, s, string(showText(s)), want)
	}
}

// FuzzShowText: hostile text never creates an element or an attribute.
func FuzzShowText(f *testing.F) {
	for _, s := range []string{"<b>", "`worker <b>`", "&lt;", "\x00", "\u202e", `"'`, "\xff", "x\ny"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, html := range []string{string(showText(s)), string(foldText(s)), string(foldCause(s)), string(foldJSON(s, json.RawMessage(s)))} {
			rest := html
			for _, own := range []string{`<span class="hidden-char" title="a character that is not seen">`, `<span class="hidden-char" title="a byte that is no UTF-8">`,
				`<span class="hidden-char" title="more marks on one character">`, "</span>", "<details><summary>", `</summary><pre tabindex="0">`, "</pre></details>", "<code>", "</code>", " <small>", "</small>", "<bdi>", "</bdi>"} {
				rest = strings.ReplaceAll(rest, own, "")
			}
			if strings.ContainsAny(rest, "<>\"'") || strings.ContainsRune(rest, '\u202e') || strings.ContainsRune(rest, 0) {
				t.Errorf("%q: %s", s, html)
			}
		}
	})
}

// TestNames checks that a hostile name hides neither the link to its agent nor the words in a page's title.
func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"\u2003 ": ` class="id">8453:7</a>`, "n": `>n</a> <small class="id">8453:7</small>`} {
		heraldtest.Contains(t, name, string(linkAgent(8453, "7", "0x8004", name)), want)
	}
	heraldtest.Equal(t, "a title", replaceHidden("a\u202eb é"), "a\ufffdb é")
}

func TestFold(t *testing.T) {
	t.Parallel()
	heraldtest.Equal(t, "a short text", string(foldText("short")), "short")
	long := strings.Repeat("x", maxShown+7)
	got := string(foldText(long))
	if !strings.HasPrefix(got, "<details>") || !strings.Contains(got, "… (7 more characters") || strings.Count(got, "x") > maxShown+maxInline+10 {
		t.Error(got[:100])
	}
	heraldtest.Contains(t, "the text", string(foldJSON("Job", json.RawMessage(`{"a":1}`))), "&#34;a&#34;: 1\n")
	heraldtest.Equal(t, "no text", foldJSON("Job", nil), "")
}

// TestPageWords checks the texts of states that a new installation does not have.
func TestPageWords(t *testing.T) {
	t.Parallel()
	p, err := New(Config{Operator: operator.New(operator.Config{Settings: &config.Config{}})})
	heraldtest.Must(t, err)
	why := "the file is not the one that was hashed: the hash on chain is 0x" + strings.Repeat("1", 64) + ", that of the file is 0x" + strings.Repeat("2", 64)
	ended := deliveryPage{Moments: []moment{{Attempt: &attemptView{Attempt: ledger.Attempt{Error: why}}}, {Attempt: &attemptView{Attempt: ledger.Attempt{Error: "another"}}}}}
	ended.FinishedAt, ended.Error, ended.FileVerification = &time.Time{}, why, "mismatch"
	v := operator.Overview{OpenBreakers: 2, TokensExpired: 4, Workers: 1, Chains: []operator.ChainProgress{{ChainID: 1, Contract: "0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"}}}
	v.Needs = v.NeedsAttention()
	agent := agentPage{Chart: &chart{}, Summaries: []summary{{CallSummary: records.CallSummary{Failures: map[outcome.Reason]int{"timeout": 4, "outcome_unknown": 2}}}}}
	for _, c := range []struct {
		page    string
		content any
		want    []string
	}{
		{"delivery", ended, []string{">No call is stored.<", why, ": as above<", ": another<"}},
		{"agent", agent, []string{">2 outcome_unknown, 4 timeout<"}},
		{"overview", overviewPage{Overview: v, Chart: &chart{}}, []string{
			`<a href="/agents?sort=failing">2 circuit breakers are open: `, "4 stored tokens are expired: <code>", `<small class="id">0x8004…a432<`,
			">delivered a minute, last 5 minutes<", ">none</span>"}},
		{"groups", groupsPage{GroupList: operator.GroupList{Groups: []records.Group{{Sentence: "it is disabled: `worker agent enable` releases <b>"}}}},
			[]string{"it is disabled: <code>worker agent enable</code> releases &lt;b&gt;"}},
		{"audit", auditPage{Rows: []records.Audit{{Action: "replay", Matched: 30, Moved: 29}, {Action: "agent enable", Matched: 1, Moved: 1338},
			{Action: "agent disable", Matched: 1}, {Action: "keys reencrypt", Moved: 12}}},
			[]string{">29 of 30<", ">1\u202f338 released<", `"Changed">–<`, ">12<"}},
		{"chains", chainsPage{[]operator.ChainState{{Cursors: []operator.CursorState{{LagBlocks: new(uint64(1234))}}}}}, []string{">1\u202f234 blocks<"}},
	} {
		var out strings.Builder
		heraldtest.Must(t, p.templates[c.page].Execute(&out, layout{Page: c.page, Content: c.content}))
		for _, want := range c.want {
			heraldtest.Equal(t, c.page+": "+want, strings.Count(out.String(), want), 1)
		}
	}
}

func TestSteps(t *testing.T) {
	t.Parallel()
	show := func(a ledger.Attempt) string {
		var out []string
		for _, s := range listSteps(a, 1) {
			out = append(out, s.State)
		}
		return strings.Join(out, " ")
	}
	for want, a := range map[string]ledger.Attempt{
		"done done done done done done done done":           {Stage: "call", Outcome: "delivered"},
		"done done failed ahead ahead ahead ahead ahead":    {Stage: "resolve", Outcome: "waiting"},
		"running ahead ahead ahead ahead ahead ahead ahead": {Stage: "claim"},
		"done done done done done done failed ahead":        {Stage: "call", Outcome: "dead"},
	} {
		heraldtest.Equal(t, want, show(a), want)
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 21, 30, 0, 0, time.UTC)
	hour := records.AgentHour{Hour: now.Truncate(time.Hour).Add(-25 * time.Hour), Calls: 40, Failures: map[outcome.Reason]int{"timeout": 10}, Latency: make([]int, 14)}
	hour.Latency[3] = 40
	for span, want := range map[string]string{"day": "", "week": "26 Nov 18:00", "month": "26 Nov", "x": ""} {
		got := ""
		for _, c := range chartCalls([]records.AgentHour{hour}, span, now).Columns {
			if c.Counts == [3]int64{30, 0, 10} && c.Text == "30 succeeded, 10 failed, p50 75 ms, p95 98 ms" && c.P95Y == "0.00%" {
				got += c.When
				heraldtest.Equal(t, "bars", c.Bars, []bar{{"good", "25.00%", "75.00%"}, {"bad", "0.00%", "25.00%"}})
			}
		}
		heraldtest.Equal(t, span, got, want)
	}
	minutes := make([]throughput.Minute, 60)
	for i := range minutes {
		minutes[i] = throughput.Minute{At: now.Add(time.Duration(i) * time.Minute), Outcomes: map[outcome.Status]int64{outcome.Delivered: 1, outcome.Dead: 2}}
	}
	c := chartOutcomes(operator.Overview{Minutes: minutes}, "hour")
	heraldtest.Equal(t, "columns", len(c.Columns), 30)
	heraldtest.Equal(t, "text", c.First()+": "+c.Columns[0].Text, "21:30: 2 delivered, 0 put off, 4 failed")
}

// TestOverviewSentence: the overview calls nothing delivered that was skipped, and claims nothing about outcomes that it
// could not read.
func TestOverviewSentence(t *testing.T) {
	t.Parallel()
	skipped := map[outcome.Status]int64{outcome.Delivered: 2, outcome.Skipped: 120}
	v := operator.Overview{Minutes: []throughput.Minute{{Outcomes: skipped}}, LastHour: operator.LastHour{Outcomes: skipped}}
	heraldtest.Equal(t, "with skipped deliveries", describeState(v, sumMinutes(v.Minutes)[0], 0),
		"All is well: 2 delivered and 0 failed in the last hour, 120 skipped.")
	v.EndedLastHour = map[outcome.Status]int64{outcome.Rejected: 2, outcome.Dead: 1, outcome.Skipped: 120}
	heraldtest.Equal(t, "with jobs that were rejected when they were accepted", describeState(v, 0, 2),
		"2 matters need attention: 0 delivered and 3 failed in the last hour, 120 skipped.")
	heraldtest.Equal(t, "without Redis", describeState(operator.Overview{Open: map[outcome.Status]int64{outcome.Queued: 3}}, 0, 1),
		"One matter needs attention: the outcomes of the last hour are unknown, 3 queued.")
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{showCount(1234567), "1\u202f234\u202f567"}, {showCount(12), "12"}, {showCount(-1234), "-1\u202f234"},
		{showSeconds(0.0004), "0 ms"}, {showSeconds(0.05), "50 ms"}, {showSeconds(1.26), "1.3 s"}, {showSeconds(61.0), "1 min 1 s"},
		{showSeconds(7300.0), "2 h 1 min"}, {showSeconds(200000.0), "2 days"}} {
		heraldtest.Equal(t, "c[0]", c[0], c[1])
	}
	heraldtest.Equal(t, "no time", fmt.Sprint(showTime((*time.Time)(nil))), "–")
}
