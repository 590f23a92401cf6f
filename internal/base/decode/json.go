package decode

import "cmp"

// Bounds of one JSON document that is decoded into a tree.
const (
	MaxTokens = 100_000
	MaxDepth  = 64
)

// Modest reports whether JSON text has at most MaxTokens tokens and at most MaxDepth levels. It stops reading at the
// first token beyond. For text that is not JSON the result has no meaning; the parser rejects it.
func Modest(text []byte) bool {
	var c Counter
	return c.Add(text)
}

// Counter counts the tokens of JSON text that arrives in pieces: names, values, and opening and closing brackets. The
// zero value is ready to use.
type Counter struct {
	Limit    int // maximum number of tokens; 0: MaxTokens
	Elements int // values so far in the outermost array, if the text is an array

	tokens, depth int
	quoted        bool // inside a string
	escaped       bool // after a backslash in a string
	inWord        bool // inside a number, true, false or null
}

// Tokens returns the number of tokens counted so far.
func (c *Counter) Tokens() int { return c.tokens }

// Add counts the next piece of the text and reports whether the text is within Limit and MaxDepth so far. Once it has
// returned false, it always does.
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

// addToken counts a token that starts a value or a name.
func (c *Counter) addToken() {
	c.tokens++
	if c.depth == 1 {
		c.Elements++
	}
}

// addByte processes one byte of the text.
func (c *Counter) addByte(b byte) {
	if c.quoted {
		switch {
		// No JSON string contains a line feed. Ending the string here keeps a quote in the framing of an event stream
		// from hiding the tokens after it.
		case b == '\n':
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
		// max: closing brackets in the framing of an event stream must not allow deeper documents.
		c.depth = max(c.depth-1, 0)
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
