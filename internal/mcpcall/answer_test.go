package mcpcall

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestReadAnswer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, raw, text string
		isError         bool
		unreadable      bool
		err             any // pointer to the error type expected
	}{
		{name: "text", raw: `{"content":[{"type":"text","text":"ok"}]}`, text: "ok"},
		{name: "two texts", raw: `{"content":[{"type":"text","text":"a"},{"type":"image","data":""},{"type":"text","text":"b"}]}`, text: "a\nb"},
		{name: "empty content", raw: `{"content":[]}`},
		{name: "tool error", raw: `{"content":[{"type":"text","text":"no"}],"isError":true}`, text: "no", isError: true},
		{name: "structured only", raw: `{"structuredContent":{"a": 1}}`, text: `{"a":1}`, unreadable: true},
		{name: "structured beside empty content", raw: `{"content":[],"structuredContent":{"a":1}}`, text: `{"a":1}`},
		{name: "nothing", raw: `{}`, unreadable: true},
		{name: "null", raw: `null`, unreadable: true},
		{name: "a string", raw: `"ok"`, unreadable: true},
		{name: "unknown block", raw: `{"content":[{"type":"hologram"},{"type":"text","text":"x"}]}`, text: "x", unreadable: true},
		{name: "block is no object", raw: `{"content":["ok"]}`, unreadable: true},
		{name: "text without text", raw: `{"content":[{"type":"text"}]}`, unreadable: true},
		{name: "content is no list", raw: `{"content":"ok"}`, unreadable: true},
		{name: "isError is a word", raw: `{"content":[],"isError":"yes"}`, unreadable: true},
		{name: "complete", raw: `{"content":[],"resultType":"complete"}`},
		{name: "task", raw: `{"resultType":"task","task":{"id":"1"}}`, unreadable: true},
		{name: "unknown resultType", raw: `{"content":[],"resultType":"later"}`, err: new(*BadAnswerError)},
		{name: "load shedding", raw: `{"resultType":"input_required","inputRequests":{}}`, err: new(*InputRequiredError)},
		{name: "control characters", raw: `{"content":[{"type":"text","text":"a\u0000\u202eb"}]}`, text: "ab"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, err := readAnswer(json.RawMessage(tt.raw), nil)
			if tt.err != nil {
				if !errors.As(err, tt.err) {
					t.Fatalf("err = %v", err)
				}
				return
			}
			heraldtest.Must(t, err)
			if a.Text != tt.text || a.IsError != tt.isError || a.Unreadable != tt.unreadable || string(a.Raw) != tt.raw {
				t.Errorf("got %+v", a)
			}
		})
	}
}

// TestAnswerRedacts checks which values of an endpoint are masked in an answer.
func TestAnswerRedacts(t *testing.T) {
	t.Parallel()
	ep := Endpoint{Transport: TransportHTTP, URL: "https://a.example/mcp?key=querysecret", Env: []string{"TOKEN=envsecret1"}}
	a := maskedAnswer(t, ep, `{"content":[{"type":"text","text":"you sent envsecret1 to ?key=querysecret"}]}`)
	heraldtest.Equal(t, "the text", a.Text, "you sent ****** to ?******")
	heraldtest.Lacks(t, "the result", string(a.Raw), "secret")
}

// TestAnswerRedactsShortSecretsAndBasic checks that short secrets are masked, and that both halves of Basic credentials
// are masked when the agent echoes them decoded.
func TestAnswerRedactsShortSecretsAndBasic(t *testing.T) {
	t.Parallel()
	ep := Endpoint{Transport: TransportHTTP, URL: "https://a.example/mcp", Secrets: []secret.Secret{secret.New("pin77")},
		Headers: map[string]secret.Secret{"Authorization": secret.New("basic " + base64.StdEncoding.EncodeToString([]byte("feedback:hunter2:x"))),
			"X-Key": secret.New("k3y!")}}
	a := maskedAnswer(t, ep, `{"content":[{"type":"text","text":"feedback:hunter2:x, \u0068unter2, hunter2:x, k3y!, pin77, receivefeedback"}]}`)
	heraldtest.Equal(t, "the text", a.Text, "******:******, hunter2, ******, ******, ******, receivefeedback")
	heraldtest.Equal(t, "valid JSON", json.Valid(a.Raw), true)
	heraldtest.Lacks(t, "the result", string(a.Raw), "hunter2:x")
	// A secret that equals a part of a tool's name does not hide the tool.
	page := toolPage{tools: []Tool{{Name: "give.feedback", InputSchema: json.RawMessage(`{"feedback":"k3y!"}`)}}}
	if page.maskSecrets(ep.newMasker()); len(page.tools) != 1 || string(page.tools[0].InputSchema) != `{"feedback":"k3y!"}` {
		t.Errorf("%+v", page.tools)
	}
}

// TestAnswerRedactsEverySpelling checks that a credential is masked in every spelling that JSON allows for its
// characters, because Postgres stores the decoded value.
func TestAnswerRedactsEverySpelling(t *testing.T) {
	t.Parallel()
	ep := Endpoint{Transport: TransportHTTP, URL: "https://a.example/mcp", Headers: map[string]secret.Secret{"Authorization": secret.New("Bearer ab/cd+ef==&<gh>")}}
	for _, spelt := range []string{`ab/cd+ef==&<gh>`, `ab\/cd+ef==&<gh>`, `ab/cd+ef\u003d\u003d\u0026\u003Cgh\u003e`, `\u0061\u0062/cd+ef==&<gh>`, `ab%2Fcd%2Bef%3D%3D%26%3Cgh%3E`, `ab&#x2F;cd+ef==&amp;&lt;gh&gt;`,
		`{\"echo\":\"ab\\/cd+ef==&<gh>\"}`} {
		a := maskedAnswer(t, ep, `{"content":[{"type":"text","text":"sent `+spelt+` by you"}],"structuredContent":{"token":"`+spelt+`"},"isError":false}`)
		if !json.Valid(a.Raw) || strings.Contains(string(a.Raw), "cd") || strings.Contains(a.Text, "cd") || !strings.Contains(a.Text, "******") || !strings.Contains(string(a.Raw), " by you") {
			t.Errorf("%s: %s %q", spelt, a.Raw, a.Text)
		}
	}
}

// TestAnswerRedactsBeforeItCuts checks that a credential at the length limit is masked before the text is cut, so that
// no half of it remains.
func TestAnswerRedactsBeforeItCuts(t *testing.T) {
	t.Parallel()
	ep := Endpoint{Transport: TransportStdio, Env: []string{"TOKEN=envsecret1"}}
	filler := strings.Repeat("x", maxAnswerText-5)
	for _, raw := range []string{`{"content":[{"type":"text","text":"` + filler + `envsec\u0072et1"}]}`, `{"content":[],"structuredContent":"` + filler[1:] + `envsecret1"}`} {
		a, err := readAnswer(json.RawMessage(raw), ep.newMasker())
		if err != nil || len(a.Text) > maxAnswerText || strings.Contains(a.Text, "e") {
			t.Errorf("%d bytes, ends in %q, %v", len(a.Text), a.Text[len(a.Text)-12:], err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"content":[{"type":"text","text":"ok"}],"isError":false,"structuredContent":{"a":[1]},"resultType":"complete"}`))
	f.Add([]byte(`{"resultType":"input_required","inputRequests":{"a":{"method":"x"}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := readAnswer(raw, nil)
		if err != nil {
			return
		}
		if len(a.Text) > maxAnswerText+3 || !utf8.ValidString(a.Text) || text.Sanitize(a.Text) != a.Text {
			t.Fatalf("text %q", a.Text)
		}
		a.maskSecrets(secret.NewMasker([]string{"ok"}))
		if len(a.Raw) > 0 && json.Valid(raw) && !json.Valid(a.Raw) {
			t.Fatal("masking broke the JSON")
		}
	})
}

// TestUnusualResults checks that readAnswer alone judges results: mcp-go refuses none of them, and no call is repeated.
func TestUnusualResults(t *testing.T) {
	t.Parallel()
	for _, result := range []string{`{"content":[{"type":"hologram"}]}`, `{"resultType":"task","task":{"taskId":"1"}}`, `"ok"`,
		`{"content":[{"type":"text","text":"ok"}],"resultType":"maybe"}`} {
		a := modern(answers{"tools/call": results(result)})
		got, err := callHinted(t, a, modernVersion)
		want, refused := readAnswer(json.RawMessage(result), nil)
		heraldtest.Equal(t, "tools/call requests", a.seen("tools/call"), 1)
		if refused != nil {
			expectFailure(t, result, err, CallError{Stage: StageCall, Written: true}, new(*BadAnswerError))
			continue
		}
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the result", string(got.Raw), result)
		heraldtest.Equal(t, "unreadable", got.Unreadable, want.Unreadable)
	}
}

// maskedAnswer reads a result that an endpoint returned, and masks the endpoint's secrets.
func maskedAnswer(t *testing.T, ep Endpoint, raw string) Answer {
	t.Helper()
	a, err := readAnswer(json.RawMessage(raw), ep.newMasker())
	heraldtest.Must(t, err)
	a.maskSecrets(ep.newMasker())
	return a
}
