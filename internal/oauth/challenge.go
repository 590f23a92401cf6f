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
		s := challenges{rest: v}
		for s.next() {
			out.add(s.scheme, s.params)
		}
	}
	return out
}

func (c *Challenge) add(scheme string, params map[string]string) {
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
	if len(s) > maxErrorCode || strings.ContainsFunc(s, notScope) {
		return ""
	}
	return s
}

// challenges reads one header value, challenge by challenge.
type challenges struct {
	rest   string
	scheme string
	params map[string]string // names in lower case; of one that stands twice the first
}

// next reads a challenge: a scheme, and then either a token68 or parameters, which servers separate by commas or
// forget to.
func (s *challenges) next() bool {
	for {
		s.skip(" \t,")
		if s.rest == "" {
			return false
		}
		if s.scheme = s.token(); s.scheme != "" {
			break
		}
		s.toComma()
	}
	s.params = map[string]string{}
	if s.token68() {
		return true
	}
	for {
		before := s.rest
		s.skip(" \t,")
		name := s.token()
		s.skip(" \t")
		if name == "" {
			s.toComma()
			return true
		}
		if !strings.HasPrefix(s.rest, "=") { // the next scheme
			s.rest = before
			return true
		}
		s.rest = s.rest[1:]
		s.skip(" \t")
		value, ok := s.value()
		if !ok {
			s.toComma()
			continue
		}
		if name = strings.ToLower(name); s.params[name] == "" {
			s.params[name] = value
		}
	}
}

func (s *challenges) skip(chars string) { s.rest = strings.TrimLeft(s.rest, chars) }

// toComma drops what cannot be read.
func (s *challenges) toComma() {
	if i := strings.IndexByte(s.rest, ','); i >= 0 {
		s.rest = s.rest[i:]
		return
	}
	s.rest = ""
}

// take cuts off the bytes at the start that may stand there.
func (s *challenges) take(may func(byte) bool) string {
	n := 0
	for n < len(s.rest) && may(s.rest[n]) {
		n++
	}
	taken := s.rest[:n]
	s.rest = s.rest[n:]
	return taken
}

// token is RFC 9110 §5.6.2.
func (s *challenges) token() string {
	return s.take(func(c byte) bool { return alphanumeric(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 })
}

// token68 cuts off a token68 (RFC 9110 §11.2) when it is all that the challenge holds.
func (s *challenges) token68() bool {
	before := s.rest
	s.skip(" \t")
	text := s.take(func(c byte) bool { return alphanumeric(c) || strings.IndexByte("-._~+/", c) >= 0 })
	s.take(func(c byte) bool { return c == '=' })
	s.skip(" \t")
	if text != "" && len(before) > len(s.rest) && (s.rest == "" || s.rest[0] == ',') {
		return true
	}
	s.rest = before
	return false
}

// value is a token or a quoted string. Unquoted URLs are read as they are meant, up to a comma or space.
func (s *challenges) value() (string, bool) {
	if !strings.HasPrefix(s.rest, `"`) {
		v := s.take(func(c byte) bool { return c > ' ' && c < 0x7f && c != ',' && c != '"' })
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

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
