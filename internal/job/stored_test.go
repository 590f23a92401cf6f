package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const secretText = "s3cret-header-value"

// storedOf encodes and decodes a job. It fails if Postgres would reject the JSON or if the JSON contains a secret.
func storedOf(t testing.TB, j Job) ([]byte, Job) {
	raw, err := json.Marshal(j)
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	if err := jsonb(raw); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	if bytes.Contains(raw, []byte(secretText)) {
		t.Fatalf("holds a secret: %s", raw)
	}
	var back Job
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatalf("decode %s: %v", raw, err)
	}
	return raw, back
}

// surrogate matches an escaped half of a surrogate pair. The encoder writes complete pairs as the character itself.
var surrogate = regexp.MustCompile(`(^|[^\\])(\\\\)*\\u[dD][89a-fA-F]`)

// jsonb checks the requirements of Postgres' jsonb: UTF-8, no NUL, complete surrogate pairs, and numbers within
// numeric.
func jsonb(raw []byte) error {
	if !utf8.Valid(raw) {
		return errors.New("is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	depth := 0
	for {
		from := dec.InputOffset()
		tok, err := dec.Token()
		if err != nil {
			if depth != 0 || dec.InputOffset() != int64(len(raw)) {
				return err
			}
			return nil
		}
		switch v := tok.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
			if depth > maxDepth+1 {
				return errors.New("is too deep")
			}
		case string:
			if strings.ContainsRune(v, 0) || surrogate.Match(raw[from:dec.InputOffset()]) {
				return fmt.Errorf("holds the string %q", v)
			}
		case json.Number:
			mantissa, exponent, _ := strings.Cut(strings.ToLower(v.String()), "e")
			if e, err := strconv.Atoi("0" + strings.TrimLeft(exponent, "+-")); err != nil || e > 1000 || len(mantissa) > 1000 {
				return fmt.Errorf("holds the number %s", v)
			}
		}
	}
}

// strangeText returns a JSON string with any runes, escapes of any code unit, and bytes that are not UTF-8.
func (g *generator) strangeText() string {
	var b strings.Builder
	for range g.IntN(7) {
		switch g.IntN(3) {
		case 0:
			text, _ := json.Marshal(string([]rune{pick(g, '"', '<', rune(g.IntN(128))), rune(g.IntN(unicode.MaxRune + 1))}))
			b.Write(text[1 : len(text)-1])
		case 1:
			fmt.Fprintf(&b, `\u%04x`, pick(g, g.IntN(1<<16), 0xD7FF+g.IntN(0x802), 0))
		case 2:
			b.WriteByte(byte(0x80 + g.IntN(0x80)))
		}
	}
	return `"` + b.String() + `"`
}

func (g *generator) strangeJSON(depth int) string {
	switch {
	case depth == 0 || g.IntN(2) == 0:
		return pick(g, g.strangeText(), "null", "true", "0", "-0", "1.50", "1e300", "-1E-300", "123456789012345678901234567890")
	case g.IntN(2) == 0:
		return g.strangeObject(depth)
	}
	var list []string
	for range g.IntN(4) {
		list = append(list, g.strangeJSON(depth-1))
	}
	return "[" + strings.Join(list, ",") + "]"
}

func (g *generator) strangeObject(depth int) string {
	var fields []string
	for i := range g.IntN(4) {
		fields = append(fields, fmt.Sprintf(`"%d%s:%s`, i, g.strangeText()[1:], g.strangeJSON(depth-1)))
	}
	return "{" + strings.Join(fields, ",") + "}"
}

// strangeJob returns a valid job, with strange texts if it is not in the old backend's form.
func (g *generator) strangeJob(turn int) string {
	m := g.valid(turn)
	if _, old := m["action_type"]; old {
		return change(m, nil)
	}
	changes := []string{"meta=" + pick(g, "", g.strangeObject(3))}
	for _, name := range []string{"tag1", "tag2", "endpoint", "feedbackURI", "responseURI", "tag"} {
		if _, ok := m[name]; ok {
			changes = append(changes, name+"="+g.strangeText())
		}
	}
	if g.IntN(3) == 0 {
		changes = append(changes, `action={"resolveEndpoint":false,"endpoint":`+pick(g, `{"transport":"stdio","command":"/bin/x","args":["a\u0000","b"]}}`,
			`{"transport":"http","url":"https://a.example/?q=<x>","headers":{"X-Key":"`+secretText+`"}}}`))
	}
	return change(m, changes)
}

func TestStoredRoundTrip(t *testing.T) {
	t.Parallel()
	g := &generator{rand.New(rand.NewPCG(1, 2))}
	for turn := range 500 {
		if turn%5 == 4 {
			continue // AgentUpdated, which is not stored
		}
		j := mustParse(t, g.strangeJob(turn))
		raw, back := storedOf(t, j)
		if e := j.Action.Endpoint; e != nil {
			e.Headers = nil // secrets are not stored
		}
		// RawMessages are compared by value, because encoding escapes their HTML characters.
		same := func(a, b json.RawMessage) bool {
			var x, y any
			return len(a) == 0 && len(b) == 0 || json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
		}
		if !same(j.Meta, back.Meta) || !same(j.Action.PayloadTemplate, back.Action.PayloadTemplate) {
			t.Fatalf("meta or template differ: %s", raw)
		}
		j.Meta, j.Action.PayloadTemplate = back.Meta, back.Action.PayloadTemplate
		heraldtest.Equal(t, "the job that was read back from "+string(raw), back, j)
		// The stored form is itself a valid job.
		back.Sanitized = nil
		raw, err := json.Marshal(back)
		heraldtest.Must(t, err)
		again, err := Parse(raw, Limits{})
		if err != nil || again.Key() != j.Key() {
			t.Fatalf("%s: %v", raw, err)
		}
		if field, conflict := again.Conflict(j); conflict {
			t.Fatalf("%s differs: %s", field, raw)
		}
	}
}

func TestStoredForm(t *testing.T) {
	t.Parallel()
	want := `{"type":"NewFeedback","chainId":8453,"reputationRegistry":"0x8004BAa17C55a88189AE136b182e5fdA19dE9b63",` +
		`"identityRegistry":"0x8004A169FB4a3325136EB29fA0ceB6D2e539a432","agentId":"42","clientAddress":"` + clientHex + `","feedbackIndex":7,` +
		`"value":"9977","valueDecimals":2,"tag1":"uptime","endpoint":"https://agent.example/mcp",` +
		`"feedbackURI":"ipfs://bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku","feedbackHash":"` + hashHex + `",` +
		`"blockNumber":41700000,"blockHash":"` + blockHex + `","transactionHash":"` + hashHex + `","logIndex":3,"timestamp":1770000000,` +
		`"action":{"toolName":"agent.receiveFeedback","resolveEndpoint":true,"endpoint":null,"includeFileContent":true,"verifyFileHash":true,` +
		`"payloadTemplate":null},"meta":{"a":1}}`
	if raw, err := json.Marshal(mustParse(t, feedback(`meta={"a":1}`))); err != nil || string(raw) != want {
		t.Errorf("got  %s (%v)\nwant %s", raw, err, want)
	}
	wideOnes := mustParse(t, feedback(`feedbackIndex="9007199254740993"`, `chainId="9007199254740993"`, `identityRegistry="`+clientHex+`"`,
		`reputationRegistry="`+clientHex+`"`, `value=`, `valueDecimals=`, `score=95`))
	raw, err := json.Marshal(wideOnes)
	for _, part := range []string{`"feedbackIndex":"9007199254740993"`, `"chainId":"9007199254740993"`, `"score":"95"`} {
		heraldtest.Must(t, err)
		heraldtest.Contains(t, "the stored job", string(raw), part)
	}
	var back Job
	heraldtest.Fails(t, "agentId x", json.Unmarshal([]byte(`{"type":"NewFeedback","agentId":"x"}`), &back))
	heraldtest.Fails(t, "value 1.5", json.Unmarshal([]byte(`{"type":"NewFeedback","agentId":"1","value":"1.5"}`), &back))
	heraldtest.Fails(t, "index -1", json.Unmarshal([]byte(`{"type":"NewFeedback","agentId":"1","feedbackIndex":-1}`), &back))
	if err := json.Unmarshal([]byte(`{"type":"Later","agentId":"1","new":{}}`), &back); err != nil || back.Kind != "Later" {
		t.Errorf("a later version's row: %v", err)
	}
}

func fuzzSeeds() []string {
	return []string{feedback(), feedback(`tag1="\ud800\u0000"`, "value=", "valueDecimals=", "score=1"), response(), validation(), oldJob(""),
		feedback(`action={"resolveEndpoint":false,"endpoint":{"transport":"http","url":"https://a/","headers":{"X-A":"b"}}}`),
		feedback(`meta={"a":[1e300,{"b":"<\u2028>"}]}`), `{"a":1,"a":2}`, `[[[[`, "\"\xff\"", `{"type":"AgentUpdated","chainId":1,"agentId":"0"}`}
}

func FuzzParse(f *testing.F) {
	for _, s := range fuzzSeeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		j, err := Parse(line, Limits{})
		var r *Refusal
		if err != nil {
			if !errors.As(err, &r) || r.Problem == "" || !utf8.ValidString(r.Error()) || len(r.Error()) > 4096 {
				t.Fatalf("%q: %v", line, err)
			}
			if j.Kind != "" && j.Key() == "" && j.Kind != KindAgentUpdated {
				t.Fatalf("%q: half a job: %+v", line, j)
			}
			return
		}
		_, back := storedOf(t, j)
		heraldtest.Equal(t, fmt.Sprintf("%q: key", line), back.Key(), j.Key())
		heraldtest.Equal(t, fmt.Sprintf("%q: key", line), back.OrderKey(), j.OrderKey())
		if field, conflict := j.Conflict(back); conflict {
			t.Fatalf("%q: %s differs after storage", line, field)
		}
		for name, v := range j.Arguments(File{}, "the-id") {
			if _, err := json.Marshal(v); err != nil {
				t.Fatalf("%q: argument %s: %v", line, name, err)
			}
		}
	})
}
