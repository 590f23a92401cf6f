package mcpcall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Our comparison and the validator's own say the same of every number, on the bound and a hair beside it too.
func TestBoundsAreTheValidators(t *testing.T) {
	t.Parallel()
	schemas := []string{`"minimum":0`, `"maximum":100`, `"minimum":0,"maximum":100`, `"minimum":-5,"maximum":-5`, `"minimum":0.5`, `"maximum":99.99`,
		`"minimum":9007199254740992`, `"minimum":9007199254740993`, `"maximum":1e300`, `"exclusiveMinimum":0,"maximum":100`, `"minimum":1,"type":"integer"`,
		`"minimum":0,"multipleOf":0.5`}
	numbers := []string{"0", "-0", "0.0", "1", "100", "100.0", "1e2", "100.000000000000000000001", "99.999999999999999999999999", "-1", "-5", "-4.9", "-0.000000000000000000001",
		"0.5", "0.49999999999999999999", "95.5", "101", "9007199254740992", "9007199254740993", "9007199254740991.9", "9223372036854775807", "9223372036854775808",
		"1e300", "1e301", "-1e300", "1e-300", "5e-324", "1e-400"}
	for _, keywords := range schemas {
		raw := fmt.Sprintf(`{"type":"object","properties":{"n":{%s}}}`, keywords)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(raw)))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource(schemaURL, doc); err != nil {
			t.Fatal(err)
		}
		theirs := c.MustCompile(schemaURL)
		ours := &inputSchema{}
		if err := ours.prepare(json.RawMessage(raw)); err != nil {
			t.Fatal(err)
		}
		for _, n := range numbers {
			instance := map[string]any{"n": json.Number(n)}
			want, got := theirs.Validate(instance), ours.validate(instance)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s of %s: %v, want %v", n, keywords, got, want)
			}
		}
		if err := ours.validate(map[string]any{"n": "text"}); keywords == `"minimum":0` && err != nil {
			t.Errorf("a text: %v", err)
		}
	}
}
