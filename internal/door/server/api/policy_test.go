package api_test

import (
	"html"
	"io"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// formVersion matches the version of the policy in a page's form.
var formVersion = regexp.MustCompile(`name="version" value="([0-9a-f]*)"`)

// TestPolicy checks that the API and the agent's page replace, show and remove the operator's policy of an agent, count
// the deliveries that each filter skipped, and name the path of an error in a policy.
func TestPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const path, rule = "/v1/agents/8453:1/policy", `{"action":"skip","when":{"tag1":"<b>"}}`
	call[api.ErrorAnswer](w, 404, "GET", path, "")
	for i, why := range []string{rule, rule, `{"action":"skip"}`} { // the last is a rule of an earlier policy
		j, err := job.Parse([]byte(jobOf(1, i+1)), job.Limits{})
		heraldtest.Must(t, err)
		_, _, err = w.store.Accept(t.Context(), []ledger.Intake{{Job: j, Filtered: "rule 1 of the operator's policy of the agent skips the event: " + why}})
		heraldtest.Must(t, err)
	}

	for document, field := range map[string]string{`{"filters":[{"action":"skip","when":{"tag":"x"}}]}`: "filters[0].when.tag", `{"enabled":1}`: "enabled", "": "", "{": ""} {
		heraldtest.Equal(t, document, call[api.ErrorAnswer](w, 400, "PUT", path, document).Error.Field, field)
	}
	changed := call[operator.AgentChange](w, 200, "PUT", path, `{"maxPerSecond":2,"filters":[`+rule+`,{"action":"deliver"}]}`)
	shown := call[operator.AgentChange](w, 200, "GET", path, "")
	if l := shown.Levels; changed.Audit == 0 || len(l) != 1 || l[0].Level != "operator" || len(l[0].Skipped) != 2 || l[0].Skipped[0] != 2 || l[0].Skipped[1] != 0 ||
		shown.Policy.MaxPerSecond != 2 || shown.Policy.OnUnknown != "resend" {
		t.Errorf("%+v, %+v", changed, shown)
	}
	listed := call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?reason=filtered", "")
	heraldtest.Equal(t, "filtered deliveries", len(listed.Deliveries), 3)

	agent := "/agents/8453:1"
	fields := url.Values{"registry": {"0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"}}
	page := w.open(200, agent)
	heraldtest.Contains(t, "the page", page, `<td data-label="Rule">1</td><td data-label="Skipped">2</td>`,
		html.EscapeString(rule), `{&#34;maxPerSecond&#34;:2}`, "/deliveries?agent=8453%3A1&amp;reason=filtered&amp;registry=0x8004a169fb4a3325136eb29fa0ceb6d2e539a432")
	for _, c := range []struct {
		document, says string
		status         int
		want           float64 // maxPerSecond in force
	}{
		{`{"filters": [{"action": "</textarea>"}]}`, "filters[0].action: must be one of deliver, skip", 400, 2},
		{`{"maxPerSecond": 3}`, "settings", 200, 3},
		{"\n", "None: the agent gets all events.", 200, 0},
	} {
		fields.Set("policy", c.document)
		fields.Set("version", formVersion.FindStringSubmatch(w.open(200, agent))[1])
		res := w.submit(page, agent+"/policy", fields)
		body, _ := io.ReadAll(res.Body)
		if p := call[operator.AgentChange](w, 200, "GET", path, "").Policy; res.StatusCode != c.status || !strings.Contains(string(body), c.says) ||
			c.status == 400 && !strings.Contains(string(body), html.EscapeString(c.document)) || p.MaxPerSecond != c.want {
			t.Errorf("%q: %d, %+v, %s", c.document, res.StatusCode, p, body)
		}
	}
	fields.Set("policy", `{"maxPerSecond": 5}`)
	fields.Set("version", formVersion.FindStringSubmatch(w.open(200, agent))[1])
	for range 2 { // a person clicks twice: the second request has the form that was loaded before the first
		heraldtest.Equal(t, "the status of a click", w.submit(page, agent+"/policy", fields).StatusCode, 200)
	}
	call[operator.AgentChange](w, 200, "PUT", path, `{"enabled":false}`)
	// The form was loaded before this change.
	fields.Set("policy", `{"maxPerSecond": 4}`)
	res := w.submit(page, agent+"/policy", fields)
	conflict, _ := io.ReadAll(res.Body)
	heraldtest.Equal(t, "the status of a late form", res.StatusCode, 409)
	heraldtest.Contains(t, "the page of a late form", string(conflict), "was changed after this form was loaded", `{&#34;maxPerSecond&#34;: 4}`,
		`{&#34;enabled&#34;:false}`)
	if p := call[operator.AgentChange](w, 200, "GET", path, "").Policy; p.MaxPerSecond != 0 {
		t.Errorf("a late form replaced the policy: %+v", p)
	}
	heraldtest.Equal(t, "levels", len(call[operator.AgentChange](w, 200, "DELETE", path, "").Levels), 0)
	trail := call[operator.AuditPage](w, 200, "GET", "/v1/audit", "")
	heraldtest.Equal(t, "audit rows", len(trail.Audit), 6)
}

// TestEnableDespitePolicy checks that the API and the agent's page say why they cannot enable an agent.
func TestEnableDespitePolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enqueue(1, 1)
	call[operator.AgentChange](w, 200, "PUT", "/v1/agents/8453:1/policy", `{"enabled":false}`)
	refused := call[api.ErrorAnswer](w, 409, "POST", "/v1/agents/8453:1/enable", "")
	heraldtest.Contains(t, "the refusal", refused.Error.Message, "a policy disables agent 8453:1")
	const agent = "/agents/8453:1"
	res := w.submit(w.open(200, agent), agent+"/enable", url.Values{"registry": {"0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"}})
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 409 || !strings.Contains(string(body), "a policy disables agent 8453:1") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}
