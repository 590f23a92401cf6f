package decode

import "cmp"

// Bounds of one JSON document that a tree is built of.
const (
	MaxTokens = 100_000
	MaxDepth  = 64
)

// Modest tells whether JSON text is within MaxTokens and MaxDepth. It stops at the first token beyond them. Text that
// is no JSON has some answer too: the parser is the one to refuse it.
func Modest(text []byte) bool {
	var c Counter
	return c.Add(text)
}

// Counter counts the tokens of JSON text that comes in pieces: names, values, and the brackets that open and close.
// The zero value is ready.
type Counter struct {
	Limit    int // of tokens; 0: MaxTokens
	Elements int // values that the outermost array holds, so far

	tokens, depth int
	quoted        bool // inside a string
	escaped       bool // after a backslash there
	inWord        bool // inside a number, true, false or null
}

// Tokens returns the number of tokens so far.
func (c *Counter) Tokens() int { return c.tokens }

// Add counts another piece and tells whether the text is still within the bounds. Once it is not, it stays so.
func (c *Counter) Add(piece []byte) bool {
	for _, b := range piece {
		if !c.isWithin() {
			return false
		}
		c.addByte(b)
	}
	return c.isWithin()
}

func (c *Counter) isWithin() bool {
	return c.tokens <= cmp.Or(c.Limit, MaxTokens) && c.depth <= MaxDepth
}

// addToken counts a token that begins a value, or a name.
func (c *Counter) addToken() {
	c.tokens++
	if c.depth == 1 {
		c.Elements++
	}
}

func (c *Counter) addByte(b byte) {
	if c.quoted {
		switch {
		case b == '\n': // no JSON string spans lines, so a quote in the framing of an event stream hides nothing
			c.quoted = false
		case c.escaped:
			c.escaped = false
		case b == '\\':
			c.escaped = true
		case b == '"':
			c.quoted = false
		}
		return
	}
	word := false
	switch b {
	case '"':
		c.quoted, c.escaped = true, false
		c.addToken()
	case '{', '[':
		c.addToken()
		c.depth++
	case '}', ']':
		c.depth = max(c.depth-1, 0) // brackets in the framing of an event stream let no document be deeper
		c.tokens++
	case ' ', '\t', '\r', '\n', ',', ':':
	default:
		word = true
		if !c.inWord {
			c.addToken()
		}
	}
	c.inWord = word
}
