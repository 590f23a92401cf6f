package netguard_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	at := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 443}
	dial := func(err error) error {
		return &url.Error{Op: "Post", URL: "https://agent.example/mcp?key=s3cret", Err: &net.OpError{Op: "dial", Net: "tcp", Addr: at, Err: err}}
	}
	dns := func(e net.DNSError) error {
		e.Name = "agent.example"
		return &net.OpError{Op: "dial", Net: "tcp", Err: &e}
	}
	expired := &x509.Certificate{NotBefore: time.Date(2024, 1, 2, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2025, 1, 2, 0, 0, 0, 0, time.UTC)}
	var number int
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"refused":        {dial(syscall.ECONNREFUSED), "could not connect to 10.0.0.7:443: connection refused"},
		"no route":       {dial(syscall.EHOSTUNREACH), "could not connect to 10.0.0.7:443: no route to host"},
		"dial timed out": {dial(context.DeadlineExceeded), "could not connect to 10.0.0.7:443 within 30 s"},
		"by a proxy":     {&url.Error{Err: &net.OpError{Op: "proxyconnect", Err: &net.OpError{Op: "dial", Addr: at, Err: syscall.ECONNREFUSED}}}, "could not connect to the proxy 10.0.0.7:443: connection refused"},
		"no name":        {dns(net.DNSError{IsNotFound: true}), "DNS does not know the name agent.example"},
		"DNS is silent":  {dns(net.DNSError{IsTimeout: true}), "DNS did not answer in time about the name agent.example"},
		"DNS fails":      {dns(net.DNSError{Err: "server misbehaving"}), "DNS could not look up the name agent.example"},
		"silence":        {context.DeadlineExceeded, "the agent did not answer within 30 s"},
		"given up":       {fmt.Errorf("call: %w", context.Canceled), "this process gave up before the agent had answered"},
		"end":            {&url.Error{Err: io.EOF}, "the agent closed the connection without an answer"},
		"half":           {io.ErrUnexpectedEOF, "the agent closed the connection in the middle of its answer"},
		"reset":          {&net.OpError{Op: "read", Addr: at, Err: syscall.ECONNRESET}, "the agent reset the connection before it had answered"},
		"unknown signer": {&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, "the TLS certificate of the agent is not signed by an authority that this machine trusts"},
		"another host":   {x509.HostnameError{Host: "agent.example", Certificate: expired}, "the TLS certificate of the agent is not for the host agent.example"},
		"expired":        {x509.CertificateInvalidError{Cert: expired, Reason: x509.Expired}, "the TLS certificate of the agent is valid from 2024-01-02 to 2025-01-02 only"},
		"alert":          {&net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}, "the agent refused the TLS connection: handshake failure"},
		"broken TLS":     {&net.OpError{Op: "local error", Err: errors.New("tls: unexpected message")}, "the TLS connection to the agent failed: unexpected message"},
		"plain":          {&url.Error{Err: http.ErrSchemeMismatch}, "the agent does not speak TLS at this address"},
		"no JSON":        {json.Unmarshal([]byte("<html>"), &number), "the answer of the agent is not JSON"},
		"other JSON":     {json.Unmarshal([]byte(`"a"`), &number), "the answer of the agent is JSON of another form than was asked for"},
		"blocked":        {&url.Error{Err: &netguard.BlockedError{Address: "10.0.0.7:443", Why: "why"}}, "connection to 10.0.0.7:443 is blocked: why"},
		"redirect":       {&url.Error{Err: errors.New(`failed to parse Location header "http://[s3cret"`)}, "the answer of the agent redirects to an address that cannot be read"},
		"our own":        {errors.New("the tool wants more"), "the tool wants more"},
		"of an address":  {&url.Error{Op: "Get", URL: "https://a.example/?key=s3cret", Err: errors.New("our own")}, "our own"},
	} {
		got := netguard.Explain("the agent", 30*time.Second, c.err)
		if got.Error() != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if again := netguard.Explain("somebody else", 0, fmt.Errorf("around: %w", got)); name != "our own" && name != "of an address" && again.Error() != c.want {
			t.Errorf("%s, told twice: %q", name, again)
		}
	}
	heraldtest.Must(t, netguard.Explain("it", 0, nil))
	if err := netguard.Explain("it", 0, dial(context.DeadlineExceeded)); !errors.Is(err, context.DeadlineExceeded) || !err.(*netguard.FailureError).Timeout() {
		t.Error("the cause is lost")
	}
}

func TestSeconds(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		250 * time.Millisecond: "250 ms", 999600 * time.Microsecond: "1 s", 1500 * time.Millisecond: "1.5 s", 29999 * time.Millisecond: "30 s",
		90 * time.Second: "90 s", 2 * time.Minute: "2 min", 130 * time.Second: "130 s", time.Hour: "60 min", 0: "0 ms",
	} {
		heraldtest.Equal(t, fmt.Sprint(d), netguard.Seconds(d), want)
	}
}

// TestErrorMessages causes each failure with a client of the guard, and checks the error text.
func TestErrorMessages(t *testing.T) {
	t.Parallel()
	g := guardtest.Loopback(t, guardtest.Resolver(t, nil))
	list := append(guardtest.Failures(t, "did not answer within 3 s"),
		guardtest.Failing{Name: "no such name", URL: "https://" + guardtest.NoSuchName, Says: "DNS does not know the name " + guardtest.NoSuchName})
	for _, f := range list {
		client := g.Client(netguard.Limits{Total: f.Wait()}, 0)
		t.Cleanup(client.CloseIdleConnections)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL+"/?key=s3cret", nil)
		heraldtest.Must(t, err)
		resp, err := client.Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			continue // the caller reports the status
		}
		text := netguard.Explain("the server", f.Wait(), err).Error()
		guardtest.RefuseGoWords(t, f.Name, text)
		heraldtest.Contains(t, f.Name, text, f.Says)
		heraldtest.Lacks(t, f.Name, text, "s3cret")
	}
}

// TestOpenFilesDuringLookup: Go's resolver only quotes the error of a socket that it could not open. The caller finds it
// nevertheless, because it says nothing about the name's owner.
func TestOpenFilesDuringLookup(t *testing.T) {
	t.Parallel()
	for _, limit := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		guard, err := netguard.New(netguard.Config{Resolver: &net.Resolver{PreferGo: true,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "udp", Err: os.NewSyscallError("socket", limit)}
			}}})
		heraldtest.Must(t, err)
		_, err = guard.Client(netguard.Limits{}, 0).Get("https://agent.example/")
		err = netguard.Explain("the agent", 0, err)
		heraldtest.Fails(t, "the error", err, limit)
		heraldtest.Equal(t, "its text", err.Error(), "could not ask DNS about the name agent.example: "+limit.Error())
	}
}
