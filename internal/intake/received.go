package intake

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maskJob is given only the first maskedPart bytes of a refused job, and hides the values that may be secret. At most
// maxReceived bytes of its result are stored.
const (
	maxReceived = 4 << 10
	maskedPart  = 4 * maxReceived
)

// received is the JSON stored as the result (deliveries.result) of a refused job from Redis.
type received struct {
	Received receivedBytes `json:"received"`
}

type receivedBytes struct {
	Bytes     int64  `json:"bytes"` // length of the whole job
	Text      string `json:"text"`
	Truncated bool   `json:"truncated,omitempty"`
}

// encodeReceived returns the JSON of received for an element: the beginning of its bytes, with all values masked that
// may be secret.
func encodeReceived(e Element) (json.RawMessage, error) {
	part := e.Body[:min(len(e.Body), maskedPart)]
	masked := maskJob(strings.ToValidUTF8(string(part), string(utf8.RuneError)))
	kept := masked
	if len(kept) > maxReceived {
		kept = strings.ToValidUTF8(kept[:maxReceived], "") // drops an incomplete character at the end
	}
	return json.Marshal(received{receivedBytes{Bytes: e.Length, Text: kept,
		Truncated: len(kept) < len(masked) || int64(len(part)) < e.Length}})
}

// shownMembers are the members of a job, in both formats, whose values are not secret. maskJob masks all other values.
var shownMembers = func() map[string]bool {
	shown := map[string]bool{}
	for name := range strings.FieldsSeq(`type chainId reputationRegistry identityRegistry validationRegistry agentId clientAddress
		feedbackIndex value valueDecimals score tag1 tag2 tag endpoint feedbackURI feedbackHash reason responder responseURI
		responseHash validatorAddress requestHash response blockNumber blockHash transactionHash logIndex timestamp action toolName
		resolveEndpoint includeFileContent verifyFileHash timeoutMs transport url id trigger_id event_id action_type priority
		created_at config event_data event_type chain_id block_number registry transaction_hash agent_id owner token_uri
		client_address feedback_index file_uri file_hash tool_name tool server_url resource_type operation resolve_endpoint
		include_file_content verify_file_hash timeout_ms validator_address request_hash response_uri response_hash`) {
		shown[name] = true
	}
	return shown
}()

// urlSecrets matches the user information and the query of URLs within a JSON string.
var urlSecrets = regexp.MustCompile(`(://)[^/?#\s"]*@|\?[^#\s"]+`)

const (
	maskText     = "******"
	maxMaskDepth = 64 // of objects and arrays; everything deeper is masked
	maxShownName = 64 // longer names of members are masked
	maxShownWord = 20 // longer words without quotes are masked; a number is not a word
)

// maskJob returns a job's text with all values masked except those of shownMembers. The text may be truncated or
// malformed JSON, or no JSON. Outside all objects and arrays, it shows short words of letters, but none after the first
// member name.
func maskJob(job string) string {
	m := masker{open: []container{{}}}
	for job != "" {
		job = m.readToken(job)
	}
	return m.out.String()
}

// masker copies a job to out, token by token, and masks values.
type masker struct {
	out  strings.Builder
	open []container // the objects and arrays around the present token, the innermost last; open[0]: none
}

// container is an object or array that has begun and not yet ended.
type container struct {
	hidden bool // everything in it is masked
	shown  bool // the value that follows is shown; in an array, every value
	array  bool
	named  bool // a member name has occurred in it
}

// readToken copies the first token of s, masked if necessary, and returns the rest of s.
func (m *masker) readToken(s string) (rest string) {
	c, in := s[0], &m.open[len(m.open)-1]
	switch {
	case c == '{' || c == '[':
		m.out.WriteByte(c)
		inner := container{array: c == '[', hidden: in.hidden || len(m.open) > maxMaskDepth || len(m.open) > 1 && !in.shown}
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

// cutToken returns the string or word at the beginning of s, a string with its quotes. whole is false for a string
// without its closing quote.
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

// writeName copies a member's name, or maskText if it is long. The next value is shown if shownMembers contains the
// name.
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

// writeValue copies a value, or writes maskText instead. whole is false for a string without its closing quote, which
// is always masked.
func (m *masker) writeValue(in *container, token string, whole bool) {
	isWord := len(token) <= maxShownWord && !strings.ContainsFunc(strings.Trim(token, "'"), isNoLetter)
	switch {
	case token == "true" || token == "false" || token == "null":
	case token[0] == '"' && in.shown && whole && !strings.Contains(token, `\"`):
		token = urlSecrets.ReplaceAllString(token, "${1}"+maskText)
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

func isNoLetter(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }
