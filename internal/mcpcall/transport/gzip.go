package transport

import (
	"bufio"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// gzipMagic is the beginning of data in the form of gzip.
const gzipMagic = "\x1f\x8b"

// decompressBody makes the body of a response plain if the agent compressed it with gzip. No request asks for that, but
// some servers do it always, and HTTP allows it (RFC 9110 §12.5.3). It reads at most limit compressed bytes.
func decompressBody(res *http.Response, limit int64) {
	switch strings.ToLower(strings.TrimSpace(res.Header.Get("Content-Encoding"))) {
	case "gzip", "x-gzip":
		res.Body = &gzipBody{ReadCloser: res.Body, limit: limit}
	}
}

// gzipBody is a body that is decompressed while it is read. If it is not compressed in spite of its header, gzipBody
// passes it unchanged.
type gzipBody struct {
	io.ReadCloser
	limit int64
	plain io.Reader // nil before the first Read
}

func (b *gzipBody) Read(p []byte) (int, error) {
	if b.plain == nil {
		in := bufio.NewReader(io.LimitReader(b.ReadCloser, b.limit))
		b.plain = in
		if head, _ := in.Peek(len(gzipMagic)); string(head) == gzipMagic {
			plain, err := gzip.NewReader(in)
			if err != nil {
				return 0, err
			}
			b.plain = plain
		}
	}
	return b.plain.Read(p)
}
