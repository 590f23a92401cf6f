package decode

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
	tokens, depth int
	quoted        bool // inside a string
	escaped       bool // after a backslash there
	inWord        bool // inside a number, true, false or null
}

// Add counts another piece and tells whether the text is still within the bounds. Once it is not, it stays so.
func (c *Counter) Add(piece []byte) bool {
	for _, b := range piece {
		if c.tokens > MaxTokens || c.depth > MaxDepth {
			return false
		}
		c.addByte(b)
	}
	return c.tokens <= MaxTokens && c.depth <= MaxDepth
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
		c.tokens++
	case '{', '[':
		c.depth++
		c.tokens++
	case '}', ']':
		c.depth = max(c.depth-1, 0) // brackets in the framing of an event stream let no document be deeper
		c.tokens++
	case ' ', '\t', '\r', '\n', ',', ':':
	default:
		word = true
		if !c.inWord {
			c.tokens++
		}
	}
	c.inWord = word
}
