package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// fillPath replaces a route's parameters by values.
func fillPath(path string) string {
	return strings.NewReplacer("{id...}", "00000000-0000-4000-8000-000000000000", "{id}", "00000000-0000-4000-8000-000000000000",
		"{agent}", "8453:1", "{$}", "").Replace(path)
}

func (w *world) newToken(scopes ...string) operator.NewAPIToken {
	w.Helper()
	made, err := w.operator.CreateAPIToken(w.Context(), "a test", scopes, 0, "the test")
	heraldtest.Must(w, err)
	return made
}

// TestAccess: every route, including future ones, refuses tokens that lack its scope, and requests of other sites'
// pages.
func TestAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tokens := map[operator.Scope]string{}
	for _, s := range operator.AllScopes() {
		tokens[s] = w.newToken(string(s)).Token
	}
	changing := 0
	for _, route := range w.routes {
		method := route.Method
		if method == "" {
			method = http.MethodPost // the route accepts every method
		}
		path := fillPath(route.Path)
		const denied, forbidden = http.StatusUnauthorized, http.StatusForbidden
		ask := func(token string, edits ...func(*http.Request)) int {
			return w.send(method, path, token, "", nil, edits...).StatusCode
		}
		refuses := func(caller string, want int, token string, edits ...func(*http.Request)) {
			t.Helper()
			heraldtest.Equal(t, method+" "+path+" "+caller, ask(token, edits...), want)
		}
		refuses("without a token", denied, "")
		if got := ask("herald_000000000000_" + strings.Repeat("x", 43)); got != denied && got != http.StatusTooManyRequests {
			t.Errorf("%s %s with an unknown token: %d", method, path, got)
		}
		refuses("with a foreign Host", forbidden, ownToken, func(r *http.Request) { r.Host = "evil.example" })
		refuses("from a page of another site", forbidden, ownToken,
			func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") })
		if method != http.MethodGet && route.Method != "" {
			changing++
			refuses("from a page of another site without Origin", forbidden, ownToken,
				func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
			refuses("with a token that may read", forbidden, tokens[operator.ScopeRead])
			if route.Form {
				res := w.send(method, path, tokens[operator.ScopeOperate], "application/x-www-form-urlencoded",
					strings.NewReader("form_token="+strings.Repeat("0", 64)))
				heraldtest.Equal(t, method+" "+path+" without the page's token", res.StatusCode, forbidden)
				answer, _ := io.ReadAll(res.Body) // a reload of this answer would send the same form again
				heraldtest.Contains(t, path, string(answer), "go back, reload the page and try again")
			}
			if route.Form == route.BearerOnly {
				t.Errorf("%s %s is neither a page's nor the API's: a browser could be made to ask for it", method, path)
			}
			if route.Scope == operator.ScopeRead {
				t.Errorf("%s %s changes something and needs no more than reading", method, path)
			}
		}
		for scope, token := range tokens {
			may := scope == route.Scope || scope == operator.ScopeOperate && route.Scope == operator.ScopeRead
			if !may && route.Path != "/v1/events" { // the stream of events does not end
				refuses("with the scope "+string(scope), forbidden, token)
			}
		}
		if route.BearerOnly {
			refuses("as a browser asks by itself", denied, "", func(r *http.Request) { r.SetBasicAuth("x", ownToken) })
		}
	}
	if changing < 15 {
		t.Errorf("only %d routes change something", changing)
	}
}

// TestDirectScope: a token without the scope direct cannot call tools. It cannot enqueue jobs that name a tool or an
// endpoint either. The answer names the field and the scope.
func TestDirectScope(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.calls.answers(`{"content":[]}`, nil)
	ordinary, direct := w.newToken("enqueue").Token, w.newToken("enqueue", "direct").Token
	callAs[api.ErrorAnswer](w, ordinary, 403, "POST", "/mcp/call", "application/json", directCall)
	callAs[api.CallAnswer](w, direct, 200, "POST", "/mcp/call", "application/json", directCall)

	lines, index := "", 0
	for field, action := range map[string]string{
		"action.endpoint":        `{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"https://a.example/mcp"}}`,
		"action.payloadTemplate": `{"payloadTemplate":{"score":1}}`,
		"action.toolName":        `{"toolName":"agent.receiveFeedbackBatch"}`,
		"action.verifyFileHash":  `{"verifyFileHash":false}`,
	} {
		index++
		body := strings.TrimSuffix(jobOf(1, index), "}") + `,"action":` + action + "}"
		got := callAs[api.ErrorAnswer](w, ordinary, 403, "POST", "/v1/jobs", "application/json", body)
		if got.Error.Code != "forbidden" || got.Error.Field != field || !strings.Contains(got.Error.Message, "scope direct") {
			t.Errorf("%s: %+v", field, got)
		}
		callAs[api.JobAnswer](w, direct, 202, "POST", "/v1/jobs", "application/json", body)
		lines += body + "\n"
	}
	res := w.send("POST", "/v1/jobs", ordinary, "application/x-ndjson", strings.NewReader(lines+jobOf(2, 1)+"\n"))
	answers := json.NewDecoder(res.Body)
	for line := 1; line <= index+1; line++ {
		var got api.JobAnswer
		heraldtest.Must(t, answers.Decode(&got))
		if want := line > index; (got.Verdict == ledger.Accepted) != want || !want && got.Error.Code != "forbidden" {
			t.Errorf("line %d: %+v %+v", line, got, got.Error)
		}
	}
}

// TestLoadedTokenExpires: a token expires too if the tokens are not loaded again.
func TestLoadedTokenExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made, err := w.operator.CreateAPIToken(t.Context(), "x", []string{"read"}, 3*time.Second, "the test")
	heraldtest.Must(t, err)
	find, err := w.operator.LoadCallers(t.Context())
	heraldtest.Must(t, err)
	token := secret.New(made.Token)
	_, err = find(t.Context(), token)
	heraldtest.Must(t, err)
	heraldtest.Await(t, "the token has expired", func() bool {
		_, err := find(t.Context(), token)
		return errors.Is(err, operator.ErrUnknownToken)
	})
}

func TestAPITokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.newToken("enqueue")
	callAs[api.JobAnswer](w, made.Token, 202, "POST", "/v1/jobs", "application/json", jobOf(1, 1))
	callAs[api.ErrorAnswer](w, made.Token, 403, "GET", "/v1/deliveries", "", "")
	callAs[api.ErrorAnswer](w, made.Token+"x", 401, "GET", "/v1/deliveries", "", "")
	callAs[api.ErrorAnswer](w, made.Token[:len(made.Token)-1]+"-", 401, "GET", "/v1/deliveries", "", "")

	list, err := w.operator.ListAPITokens(t.Context())
	if err != nil || len(list) != 1 || list[0].LastUsedAt == nil || strings.Contains(string(list[0].Hash), made.Token[20:]) {
		t.Errorf("%+v, %v", list, err)
	}
	other := w.newToken("read")
	heraldtest.Must(t, w.operator.RevokeAPIToken(t.Context(), other.ID, "the test"))
	callAs[api.ErrorAnswer](w, other.Token, 401, "GET", "/v1/deliveries", "", "") // it was never used, so it is not in the cache
	heraldtest.Fails(t, "the second revocation", w.operator.RevokeAPIToken(t.Context(), other.ID, "the test"))
	expired, err := w.operator.CreateAPIToken(t.Context(), "x", []string{"read"}, time.Nanosecond, "the test")
	heraldtest.Must(t, err)
	callAs[api.ErrorAnswer](w, expired.Token, 401, "GET", "/v1/deliveries", "", "")
	list, err = w.operator.ListAPITokens(t.Context())
	if err != nil || len(list) != 3 || list[0].LastUsedAt != nil || list[1].LastUsedAt != nil {
		t.Errorf("a use of a token that is not valid is noted: %+v, %v", list, err)
	}
	for _, scopes := range [][]string{nil, {"admin"}} {
		_, err := w.operator.CreateAPIToken(t.Context(), "x", scopes, 0, "the test")
		heraldtest.Fails(t, fmt.Sprint(scopes), err)
	}
}

// TestGuessedTokens: guessed tokens, also at /readyz, are answered from the cache. They do not delay valid tokens, even
// if those are brand-new.
func TestGuessedTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var guessing sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer guessing.Wait()
	defer stop()
	for guesser := range 8 {
		guessing.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				path := []string{"/v1/deliveries", "/readyz"}[n%2]
				r, err := http.NewRequestWithContext(ctx, "GET", w.base+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", fmt.Sprintf("Bearer herald_%012d_%043d", guesser, n))
				res, err := http.DefaultClient.Do(r)
				if err != nil {
					return
				}
				_ = res.Body.Close()
				heraldtest.Equal(t, "a guess at "+path, res.StatusCode, []int{401, 200}[n%2])
			}
		})
	}
	for range 5 {
		token := w.newToken("read").Token
		callAs[operator.DeliveryPage](w, token, 200, "GET", "/v1/deliveries", "", "")
		callAs[operator.DeliveryPage](w, ownToken, 200, "GET", "/v1/deliveries", "", "")
	}
}

// TestStreamsEndWithTheirToken: an idle stream ends within seconds after its token was revoked.
func TestStreamsEndWithTheirToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.newToken("enqueue", "read")
	stream, _ := w.streamJobs(made.Token, jobOf(1, 1))
	events := w.send("GET", "/v1/events", made.Token, "", nil)
	heraldtest.Must(t, w.operator.RevokeAPIToken(t.Context(), made.ID, "the test"))
	ended := make(chan string, 2)
	for name, res := range map[string]*http.Response{"jobs": stream, "events": events} {
		go func() {
			text, _ := io.ReadAll(res.Body)
			ended <- name + ": " + string(text)
		}()
	}
	within := time.After(20 * time.Second)
	for range 2 {
		select {
		case text := <-ended:
			if strings.HasPrefix(text, "jobs") && !strings.Contains(text, "the token was revoked") {
				t.Errorf("the last line of the stream: %s", text)
			}
		case <-within:
			t.Fatal("a stream outlives its token")
		}
	}
}

// TestSlotsOfOneToken: one token uses at most three quarters of the slots, so another token still gets a slot.
func TestSlotsOfOneToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	greedy, other := w.newToken("enqueue").Token, w.newToken("enqueue").Token
	const most = 24 // of 32
	for n := range most {
		res, _ := w.streamJobs(greedy, jobOf(1, n+1))
		heraldtest.Equal(t, fmt.Sprint("stream ", n), res.StatusCode, http.StatusOK)
	}
	callAs[api.ErrorAnswer](w, greedy, 429, "POST", "/v1/jobs", "application/json", jobOf(1, 100))
	callAs[api.JobAnswer](w, other, 202, "POST", "/v1/jobs", "application/json", jobOf(1, 101))
}

// TestReadsOfOneToken: slow reads with one token leave connections to Postgres for reads with another.
func TestReadsOfOneToken(t *testing.T) {
	t.Parallel()
	address := heraldtest.Postgres(t, postgres.Migrate)
	w := serveWorld(t, storetest.Open(t, address, 6)) // as in a worker
	greedy, other := w.newToken("read").Token, w.newToken("read").Token
	slow := heraldtest.Connect(t, address)
	_, err := slow.Exec(t.Context(), `BEGIN; LOCK TABLE herald.agents IN ACCESS EXCLUSIVE MODE`)
	heraldtest.Must(t, err)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer slow.Close(context.Background())
	for range 16 {
		reading.Go(func() { w.send("GET", "/v1/agents", greedy, "", nil) })
	}
	heraldtest.Await(t, "slow reads", func() bool {
		var waiting int
		err := slow.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'herald.agents'::regclass`).Scan(&waiting)
		return err == nil && waiting >= 4
	})
	for range 20 {
		callAs[operator.AuditPage](w, other, 200, "GET", "/v1/audit", "", "")
	}
}

// TestRefusedStream: a client that streams jobs learns that it is refused although its stream has not ended.
func TestRefusedStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		token, mediaType string
		want             int
	}{
		{"", "application/x-ndjson", http.StatusUnauthorized},
		{w.newToken("read").Token, "application/x-ndjson", http.StatusForbidden},
		{ownToken, "text/plain", http.StatusUnsupportedMediaType},
	} {
		body, feed := io.Pipe()
		go func() { _, _ = io.WriteString(feed, jobOf(1, 1)+"\n") }()
		ended := time.AfterFunc(20*time.Second, func() { _ = feed.CloseWithError(errors.New("no answer for 20 s")) })
		res := w.send("POST", "/v1/jobs", c.token, c.mediaType, body)
		heraldtest.Equal(t, "status", res.StatusCode, c.want)
		if !ended.Stop() {
			t.Errorf("the refusal %d came only after the stream", c.want)
		}
		_ = feed.Close()
	}
}

// TestChunkedJob: a connection serves further requests after a job whose body has no length, as some proxies send it.
func TestChunkedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	res := w.send("POST", "/v1/jobs", ownToken, "application/json", io.MultiReader(strings.NewReader(jobOf(1, 1))))
	heraldtest.Equal(t, "status", res.StatusCode, http.StatusAccepted)
	heraldtest.Equal(t, "closed", res.Close, false)
}
