package guardtest

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// Failing is a server that fails in one particular way.
type Failing struct {
	Name string
	URL  string // without a path
	Says string // a part of the sentence that describes the failure
}

// NoSuchName is the host for a DNS failure: a Resolver without names does not resolve it.
const NoSuchName = "agent.nowhere.zz"

// SilenceWait is the timeout that a client should use for the server that never answers.
const SilenceWait = 3 * time.Second

// Wait returns the timeout that a client should use for the server. All servers but one answer, even on a busy
// machine.
func (f Failing) Wait() time.Duration {
	if f.Name == "silence" {
		return SilenceWait
	}
	return time.Minute
}

// Failures starts servers on loopback, one for each way to fail, until the test ends. silence is a part of the
// sentence about a server that never answers, for which a client waits SilenceWait.
func Failures(t testing.TB, silence string) []Failing {
	t.Helper()
	// Load the certificates now: on a busy machine it takes seconds, and the time of a handshake is limited.
	_, _ = x509.SystemCertPool()
	return []Failing{
		{"nobody listens", "http://" + heraldtest.Address(t), "could not connect to 127.0.0.1:"},
		{"nobody listens, TLS", "https://" + heraldtest.Address(t), "could not connect to 127.0.0.1:"},
		{"end without an answer", "http://" + serveAfterRequest(t, func(net.Conn) {}), "closed the connection without an answer"},
		{"end in the middle", "http://" + serveAfterRequest(t, writeText("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\"")),
			"closed the connection in the middle of its answer"},
		{"reset", "http://" + serveAfterRequest(t, resetConnection), "reset the connection"},
		{"reset in the middle", "http://" + serveAfterRequest(t, func(c net.Conn) {
			writeText("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\"")(c)
			resetConnection(c)
		}), ""}, // the kernel decides whether the beginning is read first
		{"silence", "http://" + serveConnections(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), silence},
		{"no HTTP", "http://" + serveAfterRequest(t, writeText("SSH-2.0-OpenSSH_9.6\r\n")), "is not valid HTTP"},
		{"plain where TLS is meant", "https://" + serveAfterRequest(t, writeText("HTTP/1.1 400 Bad Request\r\n\r\n")), "does not speak TLS"},
		{"end instead of TLS", "https://" + serveAfterRequest(t, func(net.Conn) {}), "closed the connection"},
		{"TLS 1.0", "https://" + serveAfterRequest(t, writeText("\x16\x03\x01\x00\x2a\x02\x00\x00\x26\x03\x01"+strings.Repeat("x", 32)+"\x00\xc0\x13\x00")), "unsupported protocol version"},
		{"a certificate of nobody", serveUntrustedTLS(t), "is not signed by an authority that this machine trusts"},
		{"500", serveStatus(t, http.StatusInternalServerError), "500"},
		{"a redirect", serveStatus(t, http.StatusFound), ""},
	}
}

// serveAfterRequest starts a server that reads the beginning of a request, calls do with the connection, and closes
// it.
func serveAfterRequest(t testing.TB, do func(net.Conn)) string {
	t.Helper()
	return serveConnections(t, func(c net.Conn) {
		if n, err := bufio.NewReader(c).Peek(1); err == nil && len(n) > 0 {
			do(c)
		}
	})
}

// serveConnections serves each connection with do until the test ends.
func serveConnections(t testing.TB, do func(net.Conn)) string {
	t.Helper()
	return heraldtest.Listen(t, func(c net.Conn) {
		do(c)
		closeInOrder(c)
	})
}

// closeInOrder closes a connection so that the peer reads the end of the stream, and no reset because of unread data.
func closeInOrder(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok && tcp.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, c)
	}
	_ = c.Close()
}

func writeText(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, text) }
}

func resetConnection(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// serveUntrustedTLS starts an https server whose certificate no authority signed.
func serveUntrustedTLS(t testing.TB) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func serveStatus(t testing.TB, status int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Location", "https://elsewhere.example/")
		w.WriteHeader(status)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// goWords are parts of error texts of Go's packages, which only a Go programmer understands.
var goWords = []string{"EOF", "context deadline exceeded", "context canceled", "deadline exceeded", "operation was canceled",
	"connection reset by peer", "broken pipe", "dial tcp", "read tcp", "write tcp", "lookup ", "no such host", "i/o timeout", "connect: ",
	"x509", "tls: ", "remote error", "net/http", "http: ", "http2: ", "malformed", "websocket", "stream error", "transport connection",
	"invalid character", "unexpected end of JSON", "json: ", "unmarshal", "failed to send request", "failed to decode", "use of closed",
	`Get "`, `Post "`, "server misbehaving", "<nil>", "%!"}

// RefuseGoWords fails the test if text contains wording of Go's errors, or names an address three times.
func RefuseGoWords(t testing.TB, what, text string) {
	t.Helper()
	if text == "" {
		t.Errorf("%s: nothing is said", what)
	}
	for _, word := range goWords {
		if strings.Contains(text, word) {
			t.Errorf("%s speaks Go (%q): %s", what, word, text)
		}
	}
	for field := range strings.FieldsSeq(text) {
		if at := strings.Trim(field, `"():,;.`); strings.HasPrefix(at, "127.0.0.1:") && strings.Count(text, at) > 2 {
			t.Errorf("%s names %s more than twice: %s", what, at, text)
			return
		}
	}
}
