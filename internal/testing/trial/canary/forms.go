package canary

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf16"
)

// shortest is the length, in bytes, of the shortest piece that is searched. Eight random letters and digits occur by
// chance once in 10^14 positions.
const shortest = 8

// form is one encoding of a text.
type form struct {
	name  string
	text  string
	piece int // length of the pieces that are searched, in bytes
}

// formsOf returns the encodings of a secret. It omits those that equal the plain text.
func formsOf(s string) []form {
	forms := []form{{"in clear", s, shortest}}
	add := func(name, text string, piece int) {
		if text != s {
			forms = append(forms, form{name, text, piece})
		}
	}
	for _, e := range []struct {
		name     string
		encoding *base64.Encoding
	}{{"base64", base64.RawStdEncoding}, {"base64url", base64.RawURLEncoding}} {
		for shift := range 3 {
			add(e.name, base64Within(s, shift, e.encoding), 11) // 8 bytes are 10.7 characters
		}
	}
	lower := hex.EncodeToString([]byte(s))
	add("hexadecimal", lower, 2*shortest)
	add("hexadecimal", strings.ToUpper(lower), 2*shortest)
	add("percent escapes", everyByte(s, "%%%02x", ""), 3*shortest)
	add("percent escapes", everyByte(s, "%%%02X", ""), 3*shortest)
	add("unicode escapes", everyByte(s, `\u%04x`, ""), 6*shortest)
	add("unicode escapes", everyByte(s, `\u%04X`, ""), 6*shortest)
	for _, sep := range []string{" ", ",", ", "} {
		forms = append(forms, list("a list of numbers", s, "%d", sep)...)
		forms = append(forms, list("a list of numbers", s, "0x%x", sep)...)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return forms // it is binary, such as a key; the following forms are for texts
	}
	var wide []byte
	for _, u := range utf16.Encode([]rune(s)) {
		wide = binary.LittleEndian.AppendUint16(wide, u)
	}
	add("UTF-16", string(wide), 2*shortest)
	const escaped = 12 // escapes are the same for all secrets, so a piece must contain more than one
	add("JSON", inner(encodeJSON(s)), escaped)
	add("JSON with \\/", strings.ReplaceAll(inner(encodeJSON(s)), "/", `\/`), escaped)
	add("a Go string", inner(strconv.Quote(s)), escaped)
	add("HTML", html.EscapeString(s), escaped)
	add("a URL's query", url.QueryEscape(s), escaped)
	add("a URL's path", url.PathEscape(s), escaped)
	return forms
}

// base64Within returns the part of the base64 of a longer text that is determined by s, if shift bytes (modulo 3)
// precede it.
func base64Within(s string, shift int, e *base64.Encoding) string {
	text := e.EncodeToString(append(bytes.Repeat([]byte{0}, shift), s...))
	first := []int{0, 2, 3}[shift] // the first character that depends only on s
	return text[min(first, len(text)):max(min(first, len(text)), (shift+len(s))*8/6)]
}

func everyByte(s, format, sep string) string {
	parts := make([]string, len(s))
	for i := range len(s) {
		parts[i] = fmt.Sprintf(format, s[i])
	}
	return strings.Join(parts, sep)
}

// list returns one form for every eight bytes, because numbers have no fixed width.
func list(name, s, format, sep string) []form {
	var out []form
	for i := 0; i+shortest <= len(s); i++ {
		text := everyByte(s[i:i+shortest], format, sep)
		out = append(out, form{name, text, len(text)})
	}
	return out
}

func encodeJSON(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // every string has a JSON form
	}
	return string(b)
}

// inner returns a quoted text without its quotes.
func inner(s string) string { return s[1 : len(s)-1] }
