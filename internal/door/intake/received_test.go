package intake

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestMaskJob: a refused job from Redis is stored without values that may be secrets.
func TestMaskJob(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"type":"NewFeedback","chainId":"x","feedbackIndex":7,"chain":8453}`:                                                                            `{"type":"NewFeedback","chainId":"x","feedbackIndex":7,"chain":******}`,
		`{"action":{"endpoint":{"url":"https://u:s3cret@a.example/mcp?key=s3cret#x","headers":{"X-Api-Key":"s3cret","type":"s3cret"}},"toolName":"rm"}}`: `{"action":{"endpoint":{"url":"https://******a.example/mcp******#x","headers":{"X-Api-Key":"******","type":"******"}},"toolName":"rm"}}`,
		`{"config":{"auth_token":"s3cret","tool_name":"x"},"event_data":{"chain_id":8453,"owner":null}}`:                                                 `{"config":{"auth_token":"******","tool_name":"x"},"event_data":{"chain_id":8453,"owner":null}}`,
		// Names in escapes, secrets below unknown names, in arrays, as numbers.
		`{"auth\u005ftoken":"s3cret","typ\u0065":"shown"}`:                       `{"auth\u005ftoken":"******","typ\u0065":"shown"}`,
		`{"unknown":{"type":"s3cret","deep":[{"url":"s3cret"}]},"type":"shown"}`: `{"unknown":{"type":"******","deep":[{"url":"******"}]},"type":"shown"}`,
		`{"args":["--token","s3cret"],"tag1":["a",{"type":"b"},"c"]}`:            `{"args":["******","******"],"tag1":["a",{"type":"b"},"c"]}`,
		`{"pin":12345678,"on":true}`:                                             `{"pin":******,"on":true}`,
		// Escapes in strings: PHP writes / as \/.
		`{"url":"https:\/\/u:s3cret@a.example\/mcp","server_url":"https://u:s3cret\u0040a.example/m\u003fkey=s3cret"}`: `{"url":"https://******a.example/mcp","server_url":"https://******a.example/m******"}`,
		`{"url":"https://u:s3/cr#e?t@a.example/mcp","tag1":"caf\u00e9 <\t\ud800>"}`:                                    `{"url":"https://******a.example/mcp","tag1":"caf\u00e9 <\t\ud800>"}`,
		`{"type":"{\"auth_token\":\"s3cret\"}"}`:                                                                       `{"type":"******"}`,
		`{"type":"{\u0022auth_token\u0022:\u0022s3cret\u0022}","tag1":"s3cret\x"}`:                                     `{"type":"******","tag1":"******"}`,
		// Malformed, truncated, and no JSON at all.
		`{"type":"NewFeedback","auth_token":"s3cr`:        `{"type":"NewFeedback","auth_token":"******"`,
		`{"type":"NewFeedback" "auth_token" "s3cret"`:     `{"type":"NewFeedback" "******" "******"`,
		`{'type': 'NewFeedback', 'auth_token': 's3cret'}`: `{'type': 'NewFeedback', 'auth_token': ******}`,
		`}}]{"type":"shown","x":"s3cret"}`:                `}}]{"type":"shown","x":"******"}`,
		"hello there":                                     "hello there",
		"auth_token: s3cret":                              "auth_token: ******",
		"admin:hunter":                                    "admin:******",
		"Authorization: Bearer secretword":                "Authorization: ****** ******",
		"token=s3cret s3cret":                             "****** ******",
		`"s3cret"`:                                        `"******"`,
		"":                                                "",
	} {
		heraldtest.Equal(t, in, maskJob(in), want)
	}
	deep := strings.Repeat(`{"action":`, 1000) + `{"type":"s3cret"}`
	heraldtest.Lacks(t, "what lies deep", maskJob(deep), "s3cret")
}

func TestReceivedIsBounded(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]Element{
		"a long job":        {Body: []byte(`{"type":"` + strings.Repeat("é", job.MaxBytes/2)), Length: job.MaxBytes},
		"more than is read": {Body: []byte(`{"type":"x"}`), Length: 1 << 30},
		"many masks":        {Body: []byte(strings.Repeat("1 ", 1e5)), Length: 2e5},
		"binary":            {Body: []byte("\x00\xff\xfe{\"type\":\"\xff\"}"), Length: 15},
	} {
		raw := encodeReceived(e)
		var got received
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Errorf("%s: %s, %v", name, raw, err)
			continue
		}
		if r := got.Received; len(r.Text) > maxReceived || r.Bytes != e.Length || r.Truncated != (name != "binary") || !utf8.ValidString(r.Text) {
			t.Errorf("%s: %d of %d bytes, truncated %t: %.60q", name, len(r.Text), r.Bytes, r.Truncated, r.Text)
		}
	}
}
