package oauth

import (
	"strings"
)

// Bounds of a challenge: of more, the rest is not looked at.
const (
	maxHeaders   = 16      // WWW-Authenticate values
	maxHeader    = 8 << 10 // bytes of one
	maxErrorCode = 64      // bytes of an error code
)

// Challenge is what a 401 or 403 says in WWW-Authenticate. The zero value says nothing.
type Challenge struct {
	Bearer   bool   // a Bearer challenge is among them
	Metadata string // resource_metadata (RFC 9728 §5.1), as it is spelled; not checked
	Scope    string // scopes with single spaces; only characters that RFC 6749 §3.3 allows
	Error    string // invalid_token, insufficient_scope, … (RFC 6750 §3.1)
}

// ParseChallenge reads the values of WWW-Authenticate (RFC 9110 §11.6.1), each of which may hold several challenges.
// Scope and Error are of the first Bearer challenge, Metadata of the first challenge that has it, since other schemes
// carry it too. What cannot be read is passed over.
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

// cleanCode is an error code (RFC 6749 §5.2), or "" when it is none.
func cleanCode(s string) string {
	if len(s) > maxErrorCode || strings.ContainsFunc(s, isNoScopeRune) {
		return ""
	}
	return s
}

// challengeReader reads one header value, challenge by challenge.
type challengeReader struct {
	rest   string
	scheme string
	params map[string]string // names in lower case; of one that stands twice the first
}

// readChallenge reads a challenge: a scheme, and then either a token68 or parameters, which servers separate by
// commas or forget to.
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

// skipToComma drops what cannot be read.
func (s *challengeReader) skipToComma() {
	if i := strings.IndexByte(s.rest, ','); i >= 0 {
		s.rest = s.rest[i:]
		return
	}
	s.rest = ""
}

// takeWhile cuts off the bytes at the start that may stand there.
func (s *challengeReader) takeWhile(may func(byte) bool) string {
	n := 0
	for n < len(s.rest) && may(s.rest[n]) {
		n++
	}
	taken := s.rest[:n]
	s.rest = s.rest[n:]
	return taken
}

// readToken is RFC 9110 §5.6.2.
func (s *challengeReader) readToken() string {
	return s.takeWhile(func(c byte) bool { return isAlphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 })
}

// readToken68 cuts off a token68 (RFC 9110 §11.2) when it is all that the challenge holds.
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

// readValue is a token or a quoted string. Unquoted URLs are read as they are meant, up to a comma or space.
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
	s.rest = "" // it has no end
	return "", false
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
