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

	t        testing.TB
	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	all      sync.WaitGroup
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
	g.mu.Lock()
	g.listener = listener
	g.mu.Unlock()
	network, target := "tcp", g.Target
	if strings.HasPrefix(target, "/") {
		network = "unix"
	}
	g.all.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial(network, target)
			if err != nil {
				_ = in.Close()
				continue
			}
			g.mu.Lock()
			g.conns = append(g.conns, in, out)
			g.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				g.all.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_, _ = way[0].Close(), way[1].Close()
				})
			}
		}
	})
}

// Close closes all connections and refuses new ones.
func (g *Gate) Close() {
	g.mu.Lock()
	listener, conns := g.listener, g.conns
	g.listener, g.conns = nil, nil
	g.mu.Unlock()
	if listener != nil {
		_ = listener.Close()
	}
	for _, c := range conns {
		_ = c.Close()
	}
	g.all.Wait()
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
	var mu sync.Mutex
	var conns []net.Conn
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			all.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // only to end the loop
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return listener.Addr().String()
}

// Silent returns an address that accepts connections and sends nothing.
func Silent(t testing.TB) string {
	t.Helper()
	return Listen(t, func(net.Conn) {})
}
