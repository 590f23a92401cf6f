package heraldtest

import (
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// Gate is an address that refuses connections until it is opened; then it forwards them to a server. Tests use it as
// a server that is unreachable and returns.
type Gate struct {
	Address string // "127.0.0.1:port", reserved for the test
	Target  string // host:port, or the path of a socket; read by Open

	t    testing.TB
	mu   sync.Mutex
	stop func() // nil: it is closed
}

// NewGate returns a closed gate to a target.
func NewGate(t testing.TB, target string) *Gate {
	t.Helper()
	g := &Gate{Address: Address(t), Target: target, t: t}
	t.Cleanup(g.Close)
	return g
}

// PostgresGate returns a closed gate to the database at a URL, and the URL through the gate.
func PostgresGate(t testing.TB, database string) (*Gate, string) {
	t.Helper()
	u := parseURL(t, database)
	g := NewGate(t, u.Host)
	if dir := u.Query().Get("host"); strings.HasPrefix(dir, "/") {
		g.Target = dir + "/.s.PGSQL." + u.Query().Get("port")
	}
	u.Host, u.RawQuery = g.Address, "sslmode=disable"
	return g, u.String()
}

// RedisGate returns a closed gate to the Redis at a URL, and the URL through the gate.
func RedisGate(t testing.TB, redis string) (*Gate, string) {
	t.Helper()
	g := NewGate(t, RedisTarget(t, redis))
	u := parseURL(t, redis)
	u.Scheme, u.Host, u.Path = "redis", g.Address, ""
	return g, u.String()
}

// RedisTarget returns the target of a gate to the Redis at a URL.
func RedisTarget(t testing.TB, redis string) string {
	t.Helper()
	u := parseURL(t, redis)
	if u.Scheme == "redis-socket" {
		return u.Path
	}
	return u.Host
}

func parseURL(t testing.TB, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	Must(t, err)
	return u
}

// Open forwards connections to the target.
func (g *Gate) Open() {
	g.t.Helper()
	listener, err := net.Listen("tcp", g.Address)
	Must(g.t, err)
	network, target := "tcp", g.Target
	if strings.HasPrefix(target, "/") {
		network = "unix"
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stop = acceptConnections(listener, func(in net.Conn) {
		defer in.Close()
		out, err := net.Dial(network, target)
		if err != nil {
			return
		}
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(in, out)
			_, _ = in.Close(), out.Close()
		})
		_, _ = io.Copy(out, in)
		_, _ = in.Close(), out.Close()
		back.Wait()
	})
}

// Close closes all connections and refuses new ones.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stop != nil {
		g.stop()
	}
	g.stop = nil
}

// acceptConnections calls serve for each connection. stop closes the listener and the connections, and waits for serve.
func acceptConnections(listener net.Listener, serve func(net.Conn)) (stop func()) {
	var conns []net.Conn
	var accepting, serving sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
			serving.Go(func() { serve(c) })
		}
	})
	return func() {
		_ = listener.Close() // only to end the loop
		accepting.Wait()
		for _, c := range conns {
			_ = c.Close()
		}
		serving.Wait()
	}
}

// Listen calls serve for each connection to a new loopback address until the test ends, and returns the address.
// After serve returned, the connection stays open until the peer or serve closes it, or until the test ends.
func Listen(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	return ListenAt(t, "127.0.0.1", serve)
}

// ListenAt is Listen on a free port of an address of this machine.
func ListenAt(t testing.TB, address string, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	Must(t, err)
	t.Cleanup(acceptConnections(listener, serve))
	return listener.Addr().String()
}

// Silent returns an address that accepts connections and sends nothing.
func Silent(t testing.TB) string {
	t.Helper()
	return Listen(t, func(net.Conn) {})
}
