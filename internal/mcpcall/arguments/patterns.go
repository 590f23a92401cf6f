package arguments

import (
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the regular expressions of one schema. `(abcdefgh){1000}` is 8,000 instructions of 40 bytes, and a schema
// has room for thousands of those.
const (
	maxPatternBytes = 4 << 10 // of one
	maxPatternSize  = 20_000  // of all that differ, see patternExtent; 1 to 2 MB
)

// patternCompiler compiles the regular expressions of one schema, each once however often it is written.
type patternCompiler struct {
	budget *budget
	room   int
	known  map[string]*pattern
}

// pattern is one of them.
type pattern struct {
	text   string
	re     *regexp.Regexp // nil: the agent checks it itself, and here everything matches
	size   int            // instructions
	budget *budget        // of validations
}

// compile never fails: what Go's engine does not know (look-ahead, back-references) or what is too large is the agent's
// to check.
func (ps *patternCompiler) compile(text string) (jsonschema.Regexp, error) {
	if p, ok := ps.known[text]; ok {
		return p, nil
	}
	p := &pattern{text: text, budget: ps.budget}
	ps.known[text] = p
	if ps.room -= len(text); len(text) > maxPatternBytes || ps.room < 0 {
		return p, nil
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return p, nil
	}
	size, runes := patternExtent(parsed)
	if ps.room -= size + runes/16; ps.room < 0 {
		return p, nil
	}
	if re, err := regexp.Compile(text); err == nil {
		p.re, p.size = re, size
	}
	return p, nil
}

// patternExtent estimates the instructions of a parsed expression, and counts the runes that list its character
// classes, which repetitions share.
func patternExtent(re *syntax.Regexp) (size, runes int) {
	size, runes = 1, len(re.Rune)
	if re.Op == syntax.OpLiteral {
		size = len(re.Rune)
	}
	for _, sub := range re.Sub {
		s, r := patternExtent(sub)
		size, runes = size+s, runes+r
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return size, runes
}

func (p *pattern) String() string { return p.text }

// cost of matching s, in steps of a validation or of a walk.
func (p *pattern) cost(s string) int { return 1 + p.size*len(s)>>8 }

// MatchString is what the validator calls.
func (p *pattern) MatchString(s string) bool {
	if p.re == nil {
		return true
	}
	return !p.budget.charge(p.cost(s)) || p.re.MatchString(s)
}
