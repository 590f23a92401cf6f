package oauth

import (
	"strings"
)

// Bounds of a challenge. Values beyond them are ignored.
const (
	maxHeaders   = 16      // WWW-Authenticate values
	maxHeader    = 8 << 10 // bytes of one value
	maxErrorCode = 64      // bytes of an error code
)

// Challenge is the content of the WWW-Authenticate headers of a 401 or 403. The zero value is an empty challenge.
type Challenge struct {
	Bearer   bool   // there is a Bearer challenge
	Metadata string // resource_metadata (RFC 9728 §5.1) as sent, not validated
	Scope    string // scopes separated by single spaces; only characters that RFC 6749 §3.3 allows
	Error    string // invalid_token, insufficient_scope, … (RFC 6750 §3.1)
}

// ParseChallenge parses the values of WWW-Authenticate (RFC 9110 §11.6.1). Each value may contain several challenges.
// Scope and Error come from the first Bearer challenge. Metadata comes from the first challenge that contains it,
// because other schemes use it too. Malformed parts are skipped.
func ParseChallenge(values []string) Challenge {
	var out Challenge
	for _, v := range values[:min(len(values), maxHeaders)] {
		if len(v) > maxHeader {
			continue
		}
		s := challengeReader{rest: v}
		for s.readChallenge() {
			out.addChallenge(s.scheme, s.params)
		}
	}
	return out
}

func (c *Challenge) addChallenge(scheme string, params map[string]string) {
	if m := params["resource_metadata"]; c.Metadata == "" && len(m) <= maxURL {
		c.Metadata = m
	}
	if !strings.EqualFold(scheme, "Bearer") || c.Bearer {
		return
	}
	c.Bearer = true
	c.Scope = cleanScope(params["scope"])
	c.Error = cleanCode(params["error"])
}

// cleanCode returns s if it is a valid error code (RFC 6749 §5.2), else "".
func cleanCode(s string) string {
	if len(s) > maxErrorCode || strings.ContainsFunc(s, isNoScopeRune) {
		return ""
	}
	return s
}

// challengeReader parses one header value, challenge by challenge.
type challengeReader struct {
	rest   string
	scheme string
	params map[string]string // by name in lower case; the first non-empty value of a name counts
}

// readChallenge parses one challenge: a scheme followed by either a token68 or parameters. It accepts parameters
// without separating commas, because some servers omit them.
func (s *challengeReader) readChallenge() bool {
	for {
		s.skipChars(" \t,")
		if s.rest == "" {
			return false
		}
		if s.scheme = s.readToken(); s.scheme != "" {
			break
		}
		s.skipToComma()
	}
	s.params = map[string]string{}
	if s.readToken68() {
		return true
	}
	for {
		before := s.rest
		s.skipChars(" \t,")
		name := s.readToken()
		s.skipChars(" \t")
		if name == "" {
			s.skipToComma()
			return true
		}
		if !strings.HasPrefix(s.rest, "=") { // the next scheme
			s.rest = before
			return true
		}
		s.rest = s.rest[1:]
		s.skipChars(" \t")
		value, ok := s.readValue()
		if !ok {
			s.skipToComma()
			continue
		}
		if name = strings.ToLower(name); s.params[name] == "" {
			s.params[name] = value
		}
	}
}

func (s *challengeReader) skipChars(chars string) { s.rest = strings.TrimLeft(s.rest, chars) }

// skipToComma skips a malformed part.
func (s *challengeReader) skipToComma() {
	if i := strings.IndexByte(s.rest, ','); i >= 0 {
		s.rest = s.rest[i:]
		return
	}
	s.rest = ""
}

// takeWhile removes and returns the leading bytes for which may returns true.
func (s *challengeReader) takeWhile(may func(byte) bool) string {
	n := 0
	for n < len(s.rest) && may(s.rest[n]) {
		n++
	}
	taken := s.rest[:n]
	s.rest = s.rest[n:]
	return taken
}

// readToken reads a token (RFC 9110 §5.6.2); "" if there is no token.
func (s *challengeReader) readToken() string {
	return s.takeWhile(func(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 })
}

// readToken68 reads a token68 (RFC 9110 §11.2) if it makes up the rest of the challenge.
func (s *challengeReader) readToken68() bool {
	before := s.rest
	s.skipChars(" \t")
	text := s.takeWhile(func(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("-._~+/", c) >= 0 })
	s.takeWhile(func(c byte) bool { return c == '=' })
	s.skipChars(" \t")
	if text != "" && len(before) > len(s.rest) && (s.rest == "" || s.rest[0] == ',') {
		return true
	}
	s.rest = before
	return false
}

// readValue reads a token or a quoted string. It also accepts unquoted URLs, up to a comma or space.
func (s *challengeReader) readValue() (string, bool) {
	if !strings.HasPrefix(s.rest, `"`) {
		v := s.takeWhile(func(c byte) bool { return c > ' ' && c < 0x7f && c != ',' && c != '"' })
		return v, v != ""
	}
	var b strings.Builder
	for i := 1; i < len(s.rest); i++ {
		switch c := s.rest[i]; c {
		case '"':
			s.rest = s.rest[i+1:]
			return b.String(), true
		case '\\':
			if i++; i < len(s.rest) {
				b.WriteByte(s.rest[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	s.rest = "" // the quoted string is not terminated
	return "", false
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
