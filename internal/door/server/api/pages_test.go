package api_test

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

var formToken = regexp.MustCompile(`name="form_token" value="([0-9a-f]{64})"`)

// open requests a page as a browser does.
func (w *world) open(want int, path string) string {
	w.Helper()
	res := w.send("GET", path, "", "", nil, func(r *http.Request) { r.SetBasicAuth("me", ownToken) })
	body, err := io.ReadAll(res.Body)
	heraldtest.Must(w, err)
	if res.StatusCode != want || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") || !strings.HasSuffix(string(body), "</html>\n") {
		w.Errorf("%s: %d, %s", path, res.StatusCode, body[max(0, len(body)-200):])
	}
	if csp := res.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none';") || strings.Contains(csp, "unsafe") {
		w.Errorf("%s: %s", path, csp)
	}
	return string(body)
}

// submit submits a page's form as a browser does, and returns the answer.
func (w *world) submit(page, action string, fields url.Values) *http.Response {
	w.Helper()
	token := formToken.FindStringSubmatch(page)
	if token == nil {
		w.Fatal("there is no form")
	}
	fields.Set("form_token", token[1])
	return w.send("POST", action, "", "application/x-www-form-urlencoded", strings.NewReader(fields.Encode()), func(r *http.Request) {
		r.SetBasicAuth("me", ownToken)
		r.Header.Set("Origin", w.base)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	})
}

// TestPages: every page is shown, and every form does the action of its button, without JavaScript.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ids []string
	for i := range 60 {
		ids = append(ids, w.enqueue(1+i%2, i+1))
	}
	for path, want := range map[string]string{
		"/": "19 of 20 arrive within (p95, last hour)", "/deliveries": "Older", "/deliveries?agent=8453:1&status=waiting": "replay…", "/deliveries/" + ids[0]: "clientAddress",
		"/agents": "8453:2", "/agents?sort=failing": "0", "/agents/8453:1": "Newest deliveries", "/chains": "No chain is read", "/audit": "Nothing was changed yet",
		"/deliveries/move?action=cancel&agent=8453:1": "30 deliveries would be cancelled",
		"/deliveries/groups":                          "None.", "/find?q=8453:1": "Newest deliveries", "/find?q=" + ids[0]: "clientAddress", "/find?q=" + ids[0][:8]: "<title>Delivery " + ids[0][:8] + " – Herald<",
		"/agents?agent=+8453:1+": "Newest deliveries",
	} {
		heraldtest.Contains(t, path, w.open(200, path), want)
	}
	w.open(404, "/deliveries/00000000-0000-4000-8000-000000000000")
	w.open(404, "/agents/8453:99")
	w.open(400, "/deliveries?status=x")
	w.open(400, "/deliveries/move?action=x&agent=8453:1")

	one := "/deliveries/" + ids[0]
	if res := w.submit(w.open(200, one), one+"/cancel", url.Values{}); res.StatusCode != 200 || res.Request.URL.Path != one {
		t.Errorf("%d at %s", res.StatusCode, res.Request.URL)
	}
	heraldtest.Equal(t, "the status", w.delivery(ids[0]).Status, outcome.Cancelled)
	w.submit(w.open(200, one), one+"/replay", url.Values{})
	heraldtest.Equal(t, "the status", w.delivery(ids[0]).Status, outcome.Queued)

	agent := "/agents/8453:1"
	page := w.open(200, agent)
	registry := url.Values{"registry": {"0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"}}
	w.submit(page, agent+"/disable", registry)
	heraldtest.Equal(t, "the agent is enabled", w.agent(1).Enabled, false)
	w.submit(page, agent+"/enable", registry)
	w.submit(page, agent+"/refresh", registry)
	if a := w.agent(1); !a.Enabled || a.Epoch != 1 {
		t.Errorf("%+v", a)
	}
	res := w.submit(page, agent+"/probe", registry)
	heraldtest.Equal(t, "a probe without an RPC URL", res.StatusCode, 400)

	search := w.open(200, "/deliveries?agent=8453:1&since=24h")
	link := regexp.MustCompile(`href="(/deliveries/move\?action=cancel[^"]*)"`).FindStringSubmatch(search)
	if link == nil {
		t.Fatal("a search has no link that cancels what it finds")
	}
	bulk := w.open(200, html.UnescapeString(link[1]))
	heraldtest.Contains(t, "the page", bulk, "30 deliveries would be cancelled", `name="since" value="24h"`)
	res = w.submit(bulk, "/deliveries/move", url.Values{"action": {"cancel"}, "agent": {"8453:1"}, "rate": {"0"}})
	if body, _ := io.ReadAll(res.Body); res.Request.URL.Path != "/audit" || !strings.Contains(string(body), "30 of 30") {
		t.Errorf("%d at %s: %s", res.StatusCode, res.Request.URL, body)
	}
	heraldtest.Equal(t, "without a choice",
		w.submit(bulk, "/deliveries/move", url.Values{"action": {"cancel"}, "rate": {"0"}}).StatusCode, 400)
	for _, link := range regexp.MustCompile(`/static/[^"]+`).FindAllString(page, -1) {
		if res := w.send("GET", link, ownToken, "", nil); res.StatusCode != 200 || !strings.Contains(res.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %s", link, res.StatusCode, res.Header)
		}
	}
}

// TestOfferedMoves: a search offers the changes that it allows, and no other.
func TestOfferedMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	offer := regexp.MustCompile(`href="(/deliveries/move\?action=([a-z]+)[^"]*)"`)
	for search, want := range map[string]string{"": "", "since=1h": "replay cancel", "status=queued": "cancel", "status=running": "", "status=waiting": "replay cancel",
		"status=held": "replay cancel", "status=delivered": "", "status=dead": "replay", "status=dead&status=held": "replay", "status=cancelled": "replay",
		"reason=filtered": "cancel", "reorged=true": "", "status=waiting&status=queued": "cancel"} {
		var offers []string
		for _, link := range offer.FindAllStringSubmatch(w.open(200, "/deliveries?"+search), -1) {
			w.open(200, html.UnescapeString(link[1]))
			offers = append(offers, link[2])
		}
		heraldtest.Equal(t, search, strings.Join(offers, " "), want)
	}

	for i, ended := range []ledger.Outcome{{Status: outcome.Skipped, Reason: outcome.Filtered, Free: true}, {Status: outcome.Skipped, Reason: outcome.NoURI}} {
		w.record(w.enqueue(1, i+1), ended)
	}
	var reasons []string
	for _, link := range offer.FindAllStringSubmatch(w.open(200, "/deliveries/groups?status=skipped"), -1) {
		page := w.open(200, html.UnescapeString(link[1]))
		heraldtest.Contains(t, link[1], page, "1 delivery would be queued anew")
		reasons = append(reasons, regexp.MustCompile(`reason=([a-z_]+)`).FindString(link[1]))
	}
	heraldtest.Equal(t, "groups to replay", strings.Join(reasons, " "), "reason=no_uri")
}

// TestRelations checks that a feedback's page leads to its revocation and to the client's page.
func TestRelations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := "/deliveries/" + w.enqueue(1, 1)
	w.enqueue(1, 2)
	call[api.JobAnswer](w, 202, "POST", "/v1/jobs", strings.NewReplacer("NewFeedback", "FeedbackRevoked", `"value":"99","valueDecimals":0,`, "").Replace(jobOf(1, 1)))
	page := w.open(200, one)
	heraldtest.Contains(t, one, page, "<strong>99</strong> · from <a", "its revocation", "after it, by the same client")
	client := regexp.MustCompile(`/clients/0x[0-9a-f]+`).FindString(page)
	heraldtest.Contains(t, client, w.open(200, client), "All 3 deliveries", "8453:1")
}

// TestAgentsOfTwoRegistries: of two agents with one number, each page lists only its own deliveries and leads to them.
func TestAgentsOfTwoRegistries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := "0x00000000000000000000000000000000000000aa"
	first := w.enqueue(1, 1)
	j, err := job.Parse([]byte(jobOf(1, 2)), job.Limits{MaxTimeout: time.Minute})
	heraldtest.Must(t, err)
	j.IdentityRegistry = common.HexToAddress(other)
	got, _, err := w.store.Accept(t.Context(), []ledger.Intake{{Job: j}})
	heraldtest.Must(t, err)
	second := got[0].ID.String()
	for _, id := range []string{first, second} {
		w.record(id, ledger.Outcome{Status: outcome.Waiting, Reason: outcome.Timeout, Stage: "call", Called: true, Delay: time.Hour})
	}
	all, cancel := regexp.MustCompile(`<a href="([^"]+)">All of them`), regexp.MustCompile(`href="([^"]+action=cancel[^"]+)"`)
	for registry, ids := range map[string][2]string{"": {first, second}, "?registry=" + other: {second, first}} {
		page := w.open(200, "/agents/8453:1"+registry)
		link := all.FindStringSubmatch(page)
		if link == nil {
			t.Fatalf("%s: there is no link to all deliveries", registry)
		}
		list := w.open(200, html.UnescapeString(link[1]))
		for _, page := range []string{page, list} {
			heraldtest.Contains(t, "the page"+registry, page, ids[0])
			heraldtest.Lacks(t, "the page"+registry, page, ids[1])
		}
		if link = cancel.FindStringSubmatch(list); link == nil {
			t.Fatalf("%s: there is no link that cancels all", registry)
		}
		heraldtest.Contains(t, "the count", w.open(200, html.UnescapeString(link[1])), "1 delivery would be cancelled")
	}
	listed := call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?agent=8453:1&registry="+other, "")
	heraldtest.Equal(t, "deliveries", len(listed.Deliveries), 1)
	refused := call[api.ErrorAnswer](w, 400, "GET", "/v1/deliveries?registry="+other, "")
	heraldtest.Equal(t, "the parameter", refused.Error.Field, "registry")
}

// TestRefreshOfADelivery: the page of a delivery that progresses refreshes its upper part by itself. When the delivery's
// state changes, the refresh loads the whole page, because the buttons and the timeline change too.
func TestRefreshOfADelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(1, 1)
	refresh := regexp.MustCompile(`hx-get="([^"]+)"`).FindStringSubmatch(w.open(200, "/deliveries/"+id))
	if refresh == nil {
		t.Fatal("the page does not refresh")
	}
	ask := func() string {
		res := w.send("GET", html.UnescapeString(refresh[1]), ownToken, "", nil)
		return fmt.Sprint(res.StatusCode, " ", res.Header.Get("HX-Refresh"))
	}
	heraldtest.Equal(t, "a refresh", ask(), "200 ")
	call[operator.MoveReport](w, 200, "POST", "/v1/deliveries/"+id+"/cancel", "{}")
	heraldtest.Equal(t, "a refresh after the end", ask(), "200 true")
}

// TestPageOfRefusedJob checks that the page of a job from Redis that is no JSON shows its bytes, without secrets, and
// that the page of an invalid event says why it has no job.
func TestPageOfRefusedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := `{"type":"NewFeedback","agentId":"4<2","auth_token":"hunter2",`
	_, err := w.intake.FromTask(t.Context(), "NewFeedback", []byte(body))
	heraldtest.Must(t, err)
	id := call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?reason=invalid_job", "").Deliveries[0].ID
	page := html.UnescapeString(w.open(200, "/deliveries/"+id.String()))
	heraldtest.Contains(t, "the page", page, `{"type":"NewFeedback","agentId":"4<2","auth_token":"******",`)
	heraldtest.Lacks(t, "the page", page, "retention", "hunter2")

	got, _, err := w.store.Accept(t.Context(), []ledger.Intake{{Refused: "value is too large", Key: "invalid:00", Job: job.Job{Kind: job.KindNewFeedback}}})
	heraldtest.Must(t, err)
	page = w.open(200, "/deliveries/"+got[0].ID.String())
	heraldtest.Contains(t, "the page of an event from the chain", page, "It was invalid, so Herald stored no job.", "No attempt is stored.")
	heraldtest.Lacks(t, "the page of an event from the chain", page, "retention", "no attempt yet")
}

// TestFirstChangeOnLoopback: an operator may read the pages on loopback without a token. The first change asks for one,
// and keeps the form.
func TestFirstChangeOnLoopback(t *testing.T) {
	t.Parallel()
	w := serveWith(t, newWorld(t).store, "")
	token := w.newToken("operate", "enqueue").Token
	id := callAs[api.JobAnswer](w, token, 202, "POST", "/v1/jobs", "application/json", jobOf(1, 1)).ID
	res := w.send("GET", "/deliveries/"+id, "", "", nil)
	page, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%d, %v", res.StatusCode, err)
	}
	form := formToken.FindStringSubmatch(string(page))
	if form == nil {
		t.Fatal("there are no buttons")
	}
	change := func(edit func(*http.Request)) *http.Response {
		return w.send("POST", "/deliveries/"+id+"/cancel", "", "application/x-www-form-urlencoded", strings.NewReader("form_token="+form[1]), edit)
	}
	if res := change(func(*http.Request) {}); res.StatusCode != 401 || !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Basic") {
		t.Errorf("without a token: %d, %s", res.StatusCode, res.Header)
	}
	heraldtest.Equal(t, "with one", change(func(r *http.Request) { r.SetBasicAuth("me", token) }).StatusCode, 200)
	heraldtest.Equal(t, "the status",
		callAs[operator.Delivery](w, token, 200, "GET", "/v1/deliveries/"+id, "", "").Status, outcome.Cancelled)
}

// slowLive is a worker's live state with one slow agent.
type slowLive struct{ operator.Live }

func (slowLive) Breaker(string) string { return "" }

func (slowLive) Effort(_ context.Context, a erc8004.Agent) *effort.Usage {
	if a.ID != "1" {
		return nil
	}
	return &effort.Usage{Budget: 60, Left: -15.2, Calls: 73.1, Connections: 2.1, Mean: 24.9}
}

// TestEffort: the API and the agent's page show the rest of its effort budget, and the calls that used it up.
func TestEffort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.operator.Live = slowLive{}
	for n := range 2 {
		w.enqueue(1+n, 1)
	}
	if a := w.agent(1); a.Effort == nil || a.Effort.Left != -15.2 || a.Effort.Calls != 73.1 {
		t.Errorf("%+v", a.Effort)
	}
	const says = "-15.2 s left of 60 s a minute; used: calls 73.1 s, connections 2.1 s; an attempt takes 24.9 s"
	heraldtest.Contains(t, "the page", w.open(200, "/agents/8453:1"), says)
	heraldtest.Lacks(t, "the page of another agent", w.open(200, "/agents/8453:2"), "Effort budget")
}

// TestHostileQuestions: a search for any text is answered, not found, or refused. Postgres accepts neither NUL nor text
// that is not UTF-8, and a backslash is an escape in a bytea.
func TestHostileQuestions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, hostile := range []string{"%00", "%FF", "eip155:%00", "invalid:%FF", "%5C", "eip155:%5Cx", strings.Repeat("W", 3000), "%E2%80%AE", "8453:" + strings.Repeat("9", 78)} {
		for _, path := range []string{"/v1/deliveries?key=", "/v1/deliveries?agent=", "/v1/deliveries?client=", "/v1/deliveries?since=", "/v1/deliveries?reason=",
			"/v1/agents?cursor=", "/v1/agents?state=", "/v1/audit?cursor=", "/v1/deliveries/", "/v1/find?text=", "/v1/agents/", "/v1/events?lastEventId=", "/deliveries?key=", "/deliveries?agent=",
			"/deliveries/", "/agents/", "/agents?chain=", "/agents?cursor=", "/deliveries/move?action=replay&key=", "/agents/8453:1?registry="} {
			if res := w.send("GET", path+hostile, ownToken, "", nil); res.StatusCode >= 500 {
				t.Errorf("%s%.40s: %d", path, hostile, res.StatusCode)
			}
		}
	}
	call[api.ErrorAnswer](w, 400, "GET", "/v1/deliveries?key=%00", "")
}
