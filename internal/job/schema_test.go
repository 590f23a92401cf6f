package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	schemaFile = "../../docs/job.schema.json"
	jobsPage   = "../../docs/reference/jobs.md"
	oldPage    = "../../docs/reference/old-interfaces.md"
)

// difference is a rule of Parse that the schema cannot express. The schema refuses no job that Parse accepts.
type difference struct {
	problem string                              // part of Parse's refusal
	only    func(path string, line []byte) bool // nil: always
	doc     string                              // part of docs/reference/jobs.md, which explains it
	example string
}

func differences() []difference {
	return []difference{
		{"wrong checksum", nil, "EIP-55", feedback(`clientAddress="0x8004ba17c55a88189AE136b182e5fdA19dE9b63A"`)},
		{"is given twice", nil, "given twice", `{"type":"AgentUpdated","chainId":8453,"agentId":1,"agentId":2}`},
		{"bytes long; a job may have", nil, "256 KiB", feedback(`tag1="` + strings.Repeat("x", MaxBytes) + `"`)},
		{"bytes long; it may have", nil, "4 KiB", feedback(`meta={"a":"` + strings.Repeat("x", maxMetaBytes) + `"}`)},
		{"is longer than", hasWideText, "in bytes", feedback(`action={"resolveEndpoint":true,"endpoint":{"transport":"stdio","command":"` + strings.Repeat("é", 3000) + `"}}`)},
		{"nested deeper", nil, "34 levels", feedback(`meta=` + strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40))},
		{"too long or too large to be kept", nil, "exponent above 300", feedback(`meta={"a":1e999}`)},
		{"must be at most", writtenAsText, "largest value", feedback(`timestamp="999999999999"`)},
		{"an id has at most 256", writtenAsText, "largest value", feedback(`agentId="` + strings.Repeat("9", 78) + `"`)},
		{"far too wide", writtenAsText, "largest value", feedback(`value="` + strings.Repeat("0", 400) + `9"`)},
		{"whose registries are unknown", nil, "known registries", feedback(`chainId=999999`)},
		{"has no known one", nil, "known registries", feedback(`chainId=999999`, `identityRegistry="`+clientHex+`"`)},
		{"is not among the registries", nil, "does not list", feedback(`identityRegistry="` + clientHex + `"`)},
		{"knows no value", nil, "`payloadTemplate`", feedback(`action={"payloadTemplate":{"a":"{{nobody}}"}}`)},
		{"must be {{deliveryId}}", nil, "the id of another delivery", feedback(`action={"payloadTemplate":{"deliveryId":"x"}}`)},
		{"belongs to HTTP, to MCP or to Herald", nil, "belong to HTTP", feedback(`action={"resolveEndpoint":true,"endpoint":{"transport":"http","url":"https://a","headers":{"hOsT":"b"}}}`)},
		{"both give an Authorization", nil, "with an `Authorization` header", oldJob(`{"endpoint":{"url":"https://a","headers":{"authorization":"x"}},"auth_token":"y"}`)},
		{"must be an http or https URL", nil, "syntax of a URL", feedback(`action={"resolveEndpoint":true,"endpoint":{"transport":"http","url":"https://a/%zz"}}`)},
	}
}

// explain reports whether a refusal is one of the known differences.
func explain(known []difference, r *Refusal, line []byte) bool {
	return slices.ContainsFunc(known, func(d difference) bool {
		return strings.Contains(r.Problem, d.problem) && (d.only == nil || d.only(r.Path, line))
	})
}

// writtenAsText reports whether the value of the path's last name is a string.
func writtenAsText(path string, line []byte) bool {
	name := path[strings.LastIndexByte(path, '.')+1:]
	return bytes.Contains(line, []byte(`"`+name+`":"`))
}

// hasWideText reports whether the line's numbers of characters and bytes differ.
func hasWideText(_ string, line []byte) bool {
	return bytes.IndexFunc(line, func(r rune) bool { return r > unicode.MaxASCII }) >= 0
}

func loadSchema(t testing.TB) map[string]any {
	t.Helper()
	raw, err := os.ReadFile(schemaFile)
	heraldtest.Must(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	heraldtest.Must(t, err)
	return doc.(map[string]any)
}

func compileSchema(doc any) (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	if err := c.AddResource("job.schema.json", doc); err != nil {
		return nil, err
	}
	return c.Compile("job.schema.json")
}

// sample is a line and Parse's result.
type sample struct {
	name    string
	line    []byte
	value   any      // nil when it is no JSON
	refusal *Refusal // Parse's; nil: taken
	excused bool     // the schema need not refuse it
}

func newSample(known []difference, name string, line []byte) sample {
	s := sample{name: name, line: line}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err == nil {
		s.value = value
	}
	if _, err := Parse(line, Limits{}); err != nil {
		s.refusal = err.(*Refusal)
		s.excused = explain(known, s.refusal, line)
	}
	return s
}

// validate holds the sample to the schema, and returns how the schema and Parse differ about it: "" if they do not.
func (s *sample) validate(schema *jsonschema.Schema) string {
	invalid := errors.New("it is no JSON")
	if s.value != nil {
		invalid = schema.Validate(s.value)
	}
	switch {
	case invalid == nil && s.refusal != nil && !s.excused:
		return fmt.Sprintf("%s: the schema takes what Parse refuses (%v): %.600s", s.name, s.refusal, s.line)
	case invalid != nil && s.refusal == nil:
		return fmt.Sprintf("%s: the schema refuses what Parse takes (%v): %.600s", s.name, invalid, s.line)
	}
	return ""
}

// samples returns the seeds of FuzzParse, 1,000 generated jobs, and neighbours of a few jobs.
func samples(t testing.TB) []sample {
	t.Helper()
	var all []sample
	add := func(line []byte, format string, args ...any) {
		all = append(all, sample{name: fmt.Sprintf(format, args...), line: line})
	}
	for i, s := range fuzzSeeds() {
		add([]byte(s), "fuzz seed %d", i)
	}
	for seed := range uint64(1000) {
		g := &generator{rand.New(rand.NewPCG(seed, 1))}
		add(g.job(), "seed %d", seed)
	}
	seen := map[string]bool{}
	for i, whole := range wholeJobs() {
		for k, line := range neighbours(i, decodeJob(t, whole), seen) {
			add(line, "neighbour %d of whole job %d", k, i)
		}
	}
	for i, line := range contradictoryJobs() {
		add([]byte(line), "contradictory job %d", i)
	}
	return all
}

// onAllCores calls f with 0 to n-1.
func onAllCores(n int, f func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	all.Wait()
}

// TestJobSchema: the published schema and Parse accept the same jobs, except for the differences listed above and in
// docs/reference/jobs.md.
func TestJobSchema(t *testing.T) {
	t.Parallel()
	schema, err := compileSchema(loadSchema(t))
	heraldtest.Must(t, err)
	known, all := differences(), samples(t)
	differs := make([]string, len(all))
	onAllCores(len(all), func(i int) {
		all[i] = newSample(known, all[i].name, all[i].line)
		differs[i] = all[i].validate(schema)
		all[i].value = nil
	})
	taken, refused, shown := 0, 0, 0
	for i, s := range all {
		if s.refusal == nil {
			taken++
		} else {
			refused++
		}
		if differs[i] != "" && shown < 20 {
			shown++
			t.Error(differs[i])
		}
	}
	if taken < 500 || refused < 500 {
		t.Errorf("%d jobs were taken and %d refused: the generator makes too few of one", taken, refused)
	}

	page, err := os.ReadFile(jobsPage)
	heraldtest.Must(t, err)
	for _, d := range known {
		s := newSample(known, d.problem, []byte(d.example))
		if s.refusal == nil || !strings.Contains(s.refusal.Problem, d.problem) || !s.excused {
			t.Errorf("the example of %q is refused with %v", d.problem, s.refusal)
		} else if schema.Validate(s.value) != nil {
			t.Errorf("%q is no difference: the schema refuses its example too", d.problem)
		}
		if !strings.Contains(string(page), d.doc) {
			t.Errorf("docs/reference/jobs.md does not explain %q: it lacks the words %q", d.problem, d.doc)
		}
	}
}

// TestJobsPage: Parse and the schema accept every job in docs/reference/jobs.md and docs/reference/old-interfaces.md.
func TestJobsPage(t *testing.T) {
	t.Parallel()
	schema, err := compileSchema(loadSchema(t))
	heraldtest.Must(t, err)
	page, err := os.ReadFile(jobsPage)
	heraldtest.Must(t, err)
	old, err := os.ReadFile(oldPage)
	heraldtest.Must(t, err)
	known, kinds := differences(), map[Kind]bool{}
	for i, block := range strings.Split(string(page)+string(old), "```json\n")[1:] {
		body, _, _ := strings.Cut(block, "```")
		s := newSample(known, fmt.Sprintf("block %d", i+1), []byte(body))
		if s.refusal != nil {
			t.Errorf("%s: %v: %s", s.name, s.refusal, body)
		} else if why := s.validate(schema); why != "" {
			t.Error(why)
		} else {
			kinds[mustParse(t, body).Kind] = true
		}
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	heraldtest.Equal(t, "kinds of jobs on the pages", len(kinds), 5)
}
