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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"golang.org/x/sys/unix"
)

// Failing is a server that fails in one of the ways in which servers and networks do.
type Failing struct {
	Name string
	URL  string // without a path
	Says string // what of it is in the sentence about the failure
}

// NoSuchName is the host of the failure that DNS makes: a Resolver without names knows none.
const NoSuchName = "agent.nowhere.zz"

// SilenceWait is how long a client is to wait for the server that never answers.
const SilenceWait = 3 * time.Second

// Wait is how long a client is to wait for the server. All but one do answer, on a busy machine too.
func (f Failing) Wait() time.Duration {
	if f.Name == "silence" {
		return SilenceWait
	}
	return time.Minute
}

// Failures are servers on loopback, one for each way to fail, for as long as the test runs. silence is what the
// sentence about a server that never answers says, for which a client waits SilenceWait.
func Failures(t testing.TB, silence string) []Failing {
	t.Helper()
	// Loaded now, since it takes seconds on a busy machine, and a handshake has only so many.
	_, _ = x509.SystemCertPool()
	return []Failing{
		{"nobody listens", "http://" + newClosedPort(t), "could not connect to 127.0.0.1:"},
		{"nobody listens, TLS", "https://" + newClosedPort(t), "could not connect to 127.0.0.1:"},
		{"end without an answer", "http://" + serveAfterRequest(t, func(net.Conn) {}), "closed the connection without an answer"},
		{"end in the middle", "http://" + serveAfterRequest(t, writeText("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\"")),
			"closed the connection in the middle of its answer"},
		{"reset", "http://" + serveAfterRequest(t, resetConnection), "reset the connection"},
		{"reset in the middle", "http://" + serveAfterRequest(t, func(c net.Conn) {
			writeText("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\"")(c)
			resetConnection(c)
		}), ""}, // whether the beginning is read first is up to the kernel
		{"silence", "http://" + serveSilence(t), silence},
		{"no HTTP", "http://" + serveAfterRequest(t, writeText("SSH-2.0-OpenSSH_9.6\r\n")), "is not valid HTTP"},
		{"plain where TLS is meant", "https://" + serveAfterRequest(t, writeText("HTTP/1.1 400 Bad Request\r\n\r\n")), "does not speak TLS"},
		{"end instead of TLS", "https://" + serveAfterRequest(t, func(net.Conn) {}), "closed the connection"},
		{"a certificate of nobody", serveUntrustedTLS(t), "is not signed by an authority that this machine trusts"},
		{"500", serveStatus(t, http.StatusInternalServerError), "500"},
		{"a redirect", serveStatus(t, http.StatusFound), ""},
	}
}

// newClosedPort is an address where nobody listens: the port is bound, so that no other test is given it, and
// connecting is refused.
func newClosedPort(t testing.TB) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(fd)
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*unix.SockaddrInet4).Port))
}

// serveAfterRequest is a server that reads the beginning of a request, does something with the connection and ends it.
func serveAfterRequest(t testing.TB, do func(net.Conn)) string {
	t.Helper()
	return serveConnections(t, func(c net.Conn) {
		if n, err := bufio.NewReader(c).Peek(1); err == nil && len(n) > 0 {
			do(c)
		}
	})
}

// serveSilence is a server that takes what it is sent and says nothing.
func serveSilence(t testing.TB) string {
	t.Helper()
	return serveConnections(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

// serveConnections serves each connection with do until the test ends.
func serveConnections(t testing.TB, do func(net.Conn)) string {
	t.Helper()
	return heraldtest.Listen(t, func(c net.Conn) {
		do(c)
		closeInOrder(c)
	})
}

// closeInOrder ends a connection in order: the other side sees the end, and no reset over what was not read.
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

// serveUntrustedTLS is an https server whose certificate no authority has signed.
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

// goWords are pieces of the errors of Go's packages: whoever reads one has to know Go to know what happened.
var goWords = []string{"EOF", "context deadline exceeded", "context canceled", "deadline exceeded", "operation was canceled",
	"connection reset by peer", "broken pipe", "dial tcp", "read tcp", "write tcp", "lookup ", "no such host", "i/o timeout", "connect: ",
	"x509", "tls: ", "remote error", "net/http", "http: ", "http2: ", "malformed", "websocket", "stream error", "transport connection",
	"invalid character", "unexpected end of JSON", "json: ", "unmarshal", "failed to send request", "failed to decode", "use of closed",
	`Get "`, `Post "`, "server misbehaving", "<nil>", "%!"}

// RefuseGoWords fails the test when text speaks Go, or names an address three times.
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
