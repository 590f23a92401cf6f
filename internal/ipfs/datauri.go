package ipfs

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"unicode"
)

const dataURI = "the data URI"

// errOverCap is the error of capped readers for more bytes than allowed.
var errOverCap = errors.New("more bytes than allowed")

// decodeData decodes the part of a data URI after "data:" (RFC 2397). It accepts the spellings that occur on chain:
// both base64 alphabets, with or without padding, with white space and percent-encoded characters; plain JSON
// labelled as base64; a space instead of the comma; and gzip, marked by a parameter (enc=gzip) or by its magic bytes.
func decodeData(s string, limit int64) (content []byte, mediaType string, err error) {
	head, body, ok := splitData(s)
	if !ok {
		return nil, "", &InvalidError{URI: dataURI, Why: "no comma ends its header"}
	}
	if len(head) > 1024 {
		return nil, "", &InvalidError{URI: dataURI, Why: "its header is longer than 1 KiB"}
	}
	mediaType = "text/plain" // RFC 2397's default
	encoding, isBase64 := "", false
	for i, p := range strings.Split(head, ";") {
		p = strings.ToLower(strings.TrimSpace(p))
		key, value, hasValue := strings.Cut(p, "=")
		switch {
		case i == 0 && strings.Contains(p, "/"):
			mediaType = shortenText(p)
		case p == "base64":
			isBase64 = true
		case hasValue && key == "enc":
			encoding = strings.TrimSpace(value)
		}
	}
	// Percent-encoding triples a byte and base64 adds a third. A longer body, not counting white space, cannot fit
	// the limit, so it is not decoded.
	if int64(len(body)) > 4*limit+1024 {
		return nil, "", &TooLargeError{URI: dataURI, Limit: limit}
	}
	content = []byte(percentDecode(body))
	if isBase64 {
		if content, err = decodeBase64(content); err != nil {
			return nil, "", err
		}
	}
	zipped := bytes.HasPrefix(content, []byte{0x1f, 0x8b})
	switch {
	case zipped:
		content, err = gunzip(content, limit)
		if errors.Is(err, errOverCap) {
			return nil, "", &TooLargeError{URI: dataURI, Limit: limit, Why: "it unpacks to more"}
		}
		if err != nil {
			return nil, "", &InvalidError{URI: dataURI, Why: "its gzip content cannot be read", Err: err}
		}
	case encoding != "" && encoding != "identity" && encoding != "none" && !looksLikeJSON(content):
		return nil, "", &InvalidError{URI: dataURI, Why: "its encoding " + shortenText(encoding) + " cannot be read"}
	}
	if int64(len(content)) > limit {
		return nil, "", &TooLargeError{URI: dataURI, Limit: limit}
	}
	return content, mediaType, nil
}

// splitData finds the end of the header: the first comma, or a space after "base64" if the comma is missing.
func splitData(s string) (head, body string, ok bool) {
	const mark = ";base64 "
	comma := strings.IndexByte(s, ',')
	near := s[:min(len(s), 256)]
	if i := strings.Index(strings.ToLower(near), mark); i >= 0 && (comma < 0 || i < comma) &&
		len(strings.ToLower(near)) == len(near) {
		if rest := strings.TrimLeft(s[i+len(mark):], " "); !strings.HasPrefix(rest, ",") {
			return s[:i+len(mark)-1], rest, true
		}
	}
	if comma < 0 {
		return "", "", false
	}
	return s[:comma], s[comma+1:], true
}

// decodeBase64 decodes either base64 alphabet. It returns the payload unchanged if it is JSON despite its label.
func decodeBase64(b []byte) ([]byte, error) {
	if looksLikeJSON(b) {
		return b, nil
	}
	clean := make([]byte, 0, len(b))
	for _, c := range b {
		switch {
		case c == '-':
			c = '+'
		case c == '_':
			c = '/'
		case c < 0x80 && unicode.IsSpace(rune(c)):
			continue
		}
		clean = append(clean, c)
	}
	clean = bytes.TrimRight(clean, "=")
	out := make([]byte, base64.RawStdEncoding.DecodedLen(len(clean)))
	n, err := base64.RawStdEncoding.Decode(out, clean)
	if err != nil {
		return nil, &InvalidError{URI: dataURI, Why: "its base64 cannot be read", Err: err}
	}
	return out[:n], nil
}

func looksLikeJSON(b []byte) bool {
	b = bytes.TrimLeft(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), " \t\r\n")
	return len(b) > 0 && (b[0] == '{' || b[0] == '[')
}

// gunzip decompresses gzip with one or several members into at most limit bytes. It returns errOverCap for more.
// Bytes after the last member that are not a gzip member are ignored.
func gunzip(b []byte, limit int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	content, err := readCapped(z, limit)
	if errors.Is(err, gzip.ErrHeader) {
		err = nil
	}
	return content, err
}

// readCapped reads r to its end or an error. It returns errOverCap if r has more than limit bytes.
func readCapped(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(b)) > limit {
		return nil, errOverCap
	}
	return b, err
}
