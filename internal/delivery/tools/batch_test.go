package tools

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// FuzzItems: with any answer, the parsed results are bounded and concern only ids that the answer names once.
func FuzzItems(f *testing.F) {
	for _, s := range []string{`{"results":[{"deliveryId":"a","status":"accepted"},{"deliveryId":"b","status":"rejected","error":"no"}]}`,
		`{"results":[{"deliveryId":"a","status":"accepted"},{"deliveryId":"a","status":"accepted"},{"deliveryId":"a","status":"retry"}]}`,
		`{"results":[{"deliveryId":1,"status":"accepted"},null,[],{"status":"accepted"},{"deliveryId":"c","status":2,"error":{}}]}`,
		`{"results":{"deliveryId":"a"}}`, `{"results":[{"deliveryId":"a","deliveryId":"b","status":"accepted"}]}`, `[]`, `"x"`, ``,
		strings.Repeat(`{"results":[`, 100), `{"results":[{"deliveryId":"\ud800","status":"accepted","x":1e999999}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		text := string(raw)
		if utf8.ValidString(text) {
			said, err := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}})
			heraldtest.Must(t, err)
			answer := mcpcall.Answer{Raw: said}
			if got, want := len(Items(answer)), len(parseItems(raw)); got != want {
				t.Errorf("%d results, want %d", got, want)
			}
		}
		for id, r := range parseItems(raw) {
			switch r.Status {
			case ItemAccepted, ItemRejected, ItemRetry:
			default:
				t.Errorf("status %q", r.Status)
			}
			if !json.Valid(r.Raw) || len(r.Raw) > 17<<10 {
				t.Errorf("%d bytes are kept", len(r.Raw))
			}
			var strict map[string]any // unlike a struct, it distinguishes upper and lower case in names
			if json.Unmarshal(raw, &strict) == nil {
				n := 0
				list, _ := strict["results"].([]any)
				for _, item := range list {
					if o, _ := item.(map[string]any); o["deliveryId"] == id {
						n++
					}
				}
				if n > 1 {
					t.Errorf("%q is named %d times", id, n)
				}
			}
		}
	})
}
