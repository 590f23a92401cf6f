package intake

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of the text of a refused job, in bytes. encodeReceived passes the first maskedPart bytes of the job to
// maskJob, and stores the first maxReceived bytes of the result.
const (
	maxReceived = 4 << 10
	maskedPart  = 4 * maxReceived
)

// received is the JSON that a refused job from Redis leaves in deliveries.result: its length and its beginning.
type received struct {
	Received receivedBytes `json:"received"`
}

type receivedBytes struct {
	Bytes     int64  `json:"bytes"` // length of the whole job
	Text      string `json:"text"`  // from maskJob
	Truncated bool   `json:"truncated,omitempty"`
}

// encodeReceived returns the JSON of received for an element: the beginning of its text, in which maskJob replaced all
// values that may be secret.
func encodeReceived(e Element) json.RawMessage {
	kept, whole := MaskJob(e.Body)
	raw, _ := json.Marshal(received{receivedBytes{Bytes: e.Length, Text: kept,
		Truncated: !whole || int64(len(e.Body)) < e.Length}}) // encoding strings and numbers cannot fail
	return raw
}

// MaskJob returns the beginning of a whole job in Redis, at most maxReceived bytes, with all values masked that may be
// secret. whole is false if a part is missing.
func MaskJob(body []byte) (shown string, whole bool) {
	part := body[:min(len(body), maskedPart)]
	masked := maskJob(strings.ToValidUTF8(string(part), string(utf8.RuneError)))
	if len(masked) > maxReceived {
		return strings.ToValidUTF8(masked[:maxReceived], ""), false // drops an incomplete character at the end
	}
	return masked, len(part) == len(body)
}

// shownMembers contains the names of the fields of a job, in Herald's form and the old backend's, whose values are not
// secret. maskJob masks the values of all other fields.
var shownMembers = func() map[string]bool {
	shown := map[string]bool{}
	for name := range strings.FieldsSeq(`
		type chainId reputationRegistry identityRegistry validationRegistry agentId clientAddress feedbackIndex value
		valueDecimals score tag1 tag2 tag endpoint feedbackURI feedbackHash reason responder responseURI responseHash
		validatorAddress requestHash response blockNumber blockHash transactionHash logIndex timestamp action toolName
		resolveEndpoint includeFileContent verifyFileHash timeoutMs transport url id trigger_id event_id action_type
		priority created_at config event_data event_type chain_id block_number registry transaction_hash agent_id
		owner token_uri client_address feedback_index file_uri file_hash tool_name tool server_url resource_type
		operation resolve_endpoint include_file_content verify_file_hash timeout_ms validator_address
		request_hash response_uri response_hash`) {
		shown[name] = true
	}
	return shown
}()

// urlSecrets matches the user information and the query of URLs within a text. It takes all up to the last @ for user
// information, because a password may contain / ? and #, although that is no valid URL.
var urlSecrets = regexp.MustCompile(`(://)\S*@|\?[^#\s]+`)

const (
	maskText     = "******" // replaces a masked value
	maxMaskDepth = 64       // nesting of objects and arrays; values in deeper ones are masked
	maxShownName = 64       // bytes of a member's name; longer names are masked
	maxShownWord = 20       // letters of a word without quotes; longer words are masked
)

// maskJob returns the text of a job with maskText instead of all values except true, false, null and those of
// shownMembers. The text may be truncated or malformed JSON, or not JSON at all. maskJob also keeps words of at most
// maxShownWord letters that are outside all objects and arrays, if no member name precedes them there.
func maskJob(job string) string {
	m := masker{open: []container{{}}}
	for job != "" {
		job = m.readToken(job)
	}
	return m.out.String()
}

// masker copies a job to out, token by token, and masks values. It does not parse the job as a whole, because the job
// may be malformed.
type masker struct {
	out  strings.Builder
	open []container // the objects and arrays around the current token, the innermost last; open[0] is the top level
}

// container is an object or array that has begun and not yet ended, or the top level of the text.
type container struct {
	hidden bool // all values in it are masked
	shown  bool // the next value in it is not masked; in an array, no value is masked
	array  bool // it is an array
	named  bool // a member name has occurred in it
}

// readToken copies the first token of s to m.out, masked if necessary, and returns the rest of s.
func (m *masker) readToken(s string) (rest string) {
	c, in := s[0], &m.open[len(m.open)-1]
	switch {
	case c == '{' || c == '[':
		m.out.WriteByte(c)
		inner := container{array: c == '[',
			hidden: in.hidden || len(m.open) > maxMaskDepth || len(m.open) > 1 && !in.shown}
		inner.shown = inner.array && in.shown && !inner.hidden
		in.shown = in.shown && in.array
		m.open = append(m.open, inner)
		return s[1:]
	case c == '}' || c == ']':
		m.out.WriteByte(c)
		m.open = m.open[:max(len(m.open)-1, 1)]
		return s[1:]
	case c == ',' || c == ':' || unicode.IsSpace(rune(c)):
		m.out.WriteByte(c)
		return s[1:]
	}
	token, whole := cutToken(s)
	rest = s[len(token):]
	if strings.HasPrefix(strings.TrimLeft(rest, " \t\r\n"), ":") {
		m.writeName(in, token)
	} else {
		m.writeValue(in, token, whole)
	}
	return rest
}

// cutToken returns the first token of s: a string with its quotes, or the text before the next white space, quote,
// comma, colon, brace or square bracket. whole is false for a string without a closing quote, whose token is the rest
// of s; otherwise it is true.
func cutToken(s string) (token string, whole bool) {
	if s[0] != '"' {
		if end := strings.IndexAny(s, "\"{}[],: \t\r\n"); end >= 0 {
			return s[:end], true
		}
		return s, true
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i+1], true
		}
	}
	return s, false
}

// writeName writes token, the name of a member of the container, or maskText if token is longer than maxShownName. The
// value that follows is not masked if shownMembers contains the name and the container is not hidden.
func (m *masker) writeName(in *container, token string) {
	name := strings.Trim(token, "'")
	if token[0] == '"' && json.Unmarshal([]byte(token), &name) != nil {
		name = ""
	}
	in.named, in.shown = true, !in.hidden && shownMembers[name]
	if len(token) > maxShownName {
		token = maskText
	}
	m.out.WriteString(token)
}

// writeValue writes token, a value of the container, or maskText in its place. It copies true, false and null. If
// in.shown is set, it also copies strings (maskString), other JSON values, and words of at most maxShownWord letters.
// Outside all objects and arrays, it also copies such words if no member name precedes them there. It always masks a
// string that has no closing quote (whole is false).
func (m *masker) writeValue(in *container, token string, whole bool) {
	isWord := len(token) <= maxShownWord && !strings.ContainsFunc(strings.Trim(token, "'"), isNoLetter)
	switch {
	case token == "true" || token == "false" || token == "null":
	case token[0] == '"' && in.shown && whole:
		token = maskString(token)
	case token[0] == '"':
		token = `"` + maskText + `"`
	case in.shown && (isWord || json.Valid([]byte(token))):
	case len(m.open) == 1 && !in.named && isWord:
	default:
		token = maskText
	}
	in.shown = in.shown && in.array
	m.out.WriteString(token)
}

// maskString returns token, a JSON string, with maskText instead of the parts that urlSecrets matches. It decodes the
// string first, because escapes such as \/ hide these parts. It masks a string that contains a quote, or that
// encoding/json refuses.
func maskString(token string) string {
	var text string
	if json.Unmarshal([]byte(token), &text) != nil || strings.Contains(text, `"`) {
		return `"` + maskText + `"`
	}
	masked := urlSecrets.ReplaceAllString(text, "${1}"+maskText)
	if masked == text {
		return token
	}
	raw, _ := json.Marshal(masked) // encoding a string cannot fail
	return string(raw)
}

func isNoLetter(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }
