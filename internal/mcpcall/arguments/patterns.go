package arguments

import (
	"regexp"
	"regexp/syntax"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the regular expressions of one schema. `(abcdefgh){1000}` compiles to 8,000 instructions of 40 bytes, and a
// schema has room for thousands of such expressions.
const (
	maxPatternBytes = 4 << 10 // of one expression
	maxPatternSize  = 20_000  // of all distinct expressions, see patternExtent; 1 to 2 MB
)

// patternCompiler compiles the regular expressions of one schema. It compiles equal expressions once.
type patternCompiler struct {
	budget *budget
	room   int
	known  map[string]*pattern
}

// pattern is one regular expression.
type pattern struct {
	text   string
	re     *regexp.Regexp // nil: every string matches here, and the agent checks the value itself
	size   int            // instructions
	budget *budget        // of validations
}

// compile never fails. An expression that is too large or that Go's engine does not support (look-ahead,
// back-references) matches every string; the agent checks the value itself.
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

// patternExtent estimates the number of instructions of a parsed expression. It also counts the runes of its character
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

// cost returns the cost of matching s, in steps of a validation or of a schema walk.
func (p *pattern) cost(s string) int { return 1 + p.size*len(s)>>8 }

// MatchString reports whether s matches. The validator calls it; it charges the validation's budget.
func (p *pattern) MatchString(s string) bool {
	if p.re == nil {
		return true
	}
	return !p.budget.charge(p.cost(s)) || p.re.MatchString(s)
}
