package intake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// jobList records the accepted jobs.
type jobList struct {
	seen []ledger.Intake
	err  error
}

func (l *jobList) Accept(_ context.Context, in []ledger.Intake) ([]ledger.Acceptance, []ledger.Task, error) {
	l.seen = append(l.seen, in...)
	out := make([]ledger.Acceptance, len(in))
	for i, it := range in {
		out[i] = ledger.Acceptance{Verdict: ledger.Accepted, Key: it.Key}
	}
	return out, nil, l.err
}

func newIntake(t testing.TB, l *jobList, p RedisPolicy) *Intake {
	t.Helper()
	keys, err := secret.Create()
	heraldtest.Must(t, err)
	in, err := New(Config{Ledger: l, Sealer: keys, Redis: p, Logger: slog.New(slog.DiscardHandler)})
	heraldtest.Must(t, err)
	return in
}

const (
	eventData = `{"event_type":"NewFeedback","chain_id":8453,"agent_id":42,"client_address":"0x1111111111111111111111111111111111111111","feedback_index":7,"score":95}`
)

func oldJob(kind, config, data string) Element {
	body := `{"id":"1","trigger_id":"t","event_id":"e","action_type":"` + kind + `","priority":1,"config":` + config +
		`,"event_data":` + data + `,"created_at":"2026-01-11T00:00:00Z"}`
	return Element{Body: []byte(body), Length: int64(len(body))}
}

// TestFromList: each element of a list becomes a row. It has the key of its event if that can be parsed.
func TestFromList(t *testing.T) {
	t.Parallel()
	hash := func(parts ...string) string {
		sum := sha256.Sum256([]byte(strings.Join(parts, "")))
		return "invalid:" + hex.EncodeToString(sum[:])
	}
	telegram, indexless := oldJob("telegram", "{}", eventData), oldJob("mcp", "{}", strings.Replace(eventData, `"feedback_index":7,`, "", 1))
	named := oldJob("mcp", `{"server_url":"https://a.example/mcp","auth_token":"s3cret"}`, eventData)
	tool := oldJob("mcp", `{"tool_name":"rm"}`, eventData)
	cut := strings.Repeat("x", job.MaxBytes+1)
	for name, c := range map[string]struct {
		element Element
		policy  RedisPolicy
		key     string // of a refused job; empty: it is accepted
		problem string
	}{
		"a job":           {oldJob("mcp", "{}", eventData), RedisJobs, "", ""},
		"telegram":        {telegram, RedisOn, hash(string(telegram.Body)), `action_type: "telegram" is not delivered by Herald: only mcp is`},
		"without index":   {indexless, RedisOn, hash(string(indexless.Body)), "event_data.feedback_index: is missing"},
		"endpoint":        {named, RedisJobs, "", ""},
		"a tool":          {tool, RedisOn, hash(string(tool.Body)), "config.tool_name: is not a tool"},
		"nothing":         {Element{}, RedisOn, hash(), ""},
		"no JSON":         {Element{Body: []byte("hello"), Length: 5}, RedisOn, hash("hello"), ""},
		"beyond a job":    {Element{Body: []byte(cut), Length: 1 << 29}, RedisOn, hash(cut, strconv.Itoa(1<<29)), "is 536870912 bytes long; a job may have 262144"},
		"in Herald's own": {Element{Body: []byte(`{"type":"AgentUpdated","chainId":8453,"agentId":"42"}`), Length: 53}, RedisJobs, "", ""},
	} {
		l := &jobList{}
		taken, err := newIntake(t, l, c.policy).FromList(t.Context(), []Element{c.element})
		if err != nil || len(taken) != 1 || len(l.seen) != 1 {
			t.Errorf("%s: %v, %v", name, taken, err)
			continue
		}
		it := l.seen[0]
		key := it.Key
		if key == "" && it.Refused != "" {
			key = it.Job.Key()
		}
		if key != c.key || !strings.HasPrefix(it.Refused, c.problem) || (it.Refused == "") != (c.key == "") || it.Job.Kind == "" ||
			(taken[0].Verdict == Rejected) != (c.key != "") || strings.Contains(it.Refused, "s3cret") {
			t.Errorf("%s: %s %q, %+v", name, key, it.Refused, taken[0])
		}
		if (len(it.Received) > 0) != (c.key != "") || strings.Contains(string(it.Received), "s3cret") {
			t.Errorf("%s: of its bytes %s is kept", name, it.Received)
		}
		if (len(it.SealedHeaders) > 0) != (name == "endpoint") {
			t.Errorf("%s: %d bytes of sealed headers", name, len(it.SealedHeaders))
		}
	}

	away := errors.New("away")
	_, err := newIntake(t, &jobList{err: away}, RedisOn).FromList(t.Context(), []Element{telegram})
	heraldtest.Fails(t, "while the ledger is away", err, away)
}

var invalidKey = regexp.MustCompile(`^invalid:[0-9a-f]{64}$`)

// FuzzFromList: any element becomes one row, and does not stop the elements after it.
func FuzzFromList(f *testing.F) {
	for _, e := range []Element{oldJob("mcp", "{}", eventData), oldJob("rest", "{}", eventData),
		oldJob("mcp", `{"resolve_endpoint":false,"endpoint":{"transport":"http","url":"https://a/mcp","headers":{"X":"y"}},"payload_template":{"a":"{{score}}"}}`, eventData),
		oldJob("mcp", `{"server_url":"https://a","resource_type":"x","operation":"y"}`, `{"event_type":"ValidationResponse"}`)} {
		f.Add(e.Body, int64(len(e.Body)), true)
	}
	f.Add([]byte("\x00\xff"), int64(1)<<40, false)
	f.Add([]byte(`{"action_type":1,"event_data":[],"config":null}`), int64(-1), true)
	f.Fuzz(func(t *testing.T, body []byte, length int64, on bool) {
		policy := RedisJobs
		if on {
			policy = RedisOn
		}
		l := &jobList{}
		taken, err := newIntake(t, l, policy).FromList(t.Context(), []Element{{Body: body, Length: max(length, int64(len(body)))}})
		if err != nil || len(taken) != 1 || len(l.seen) != 1 {
			t.Fatalf("%v, %v", taken, err)
		}
		it := l.seen[0]
		switch key := it.Job.Key(); {
		case it.Job.Kind == "":
			t.Error("it has no kind")
		case it.Key != "" && (!invalidKey.MatchString(it.Key) || it.Refused == ""):
			t.Errorf("its key is %q, refused %q", it.Key, it.Refused)
		case it.Key == "" && key == "" && it.Job.Kind != job.KindAgentUpdated:
			t.Error("it has no key")
		case (it.Refused == "") != (it.Received == nil):
			t.Errorf("refused %q, its bytes: %s", it.Refused, it.Received)
		}
	})
}
