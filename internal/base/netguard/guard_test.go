package netguard_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func mustGuard(t *testing.T, cfg netguard.Config) *netguard.Guard {
	t.Helper()
	g, err := netguard.New(cfg)
	heraldtest.Must(t, err)
	return g
}

func loopbackNetwork() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} }

func getURL(t *testing.T, c *http.Client, target string) (*http.Response, error) {
	t.Helper()
	t.Cleanup(c.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	heraldtest.Must(t, err)
	resp, err := c.Do(req)
	if err == nil {
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	return resp, err
}

// blockedHosts returns hosts, as they are written in URLs, that lead to this machine, its network or its cloud's metadata
// service, and one with a port that is no web server's.
func blockedHosts() map[string]string {
	return map[string]string{
		"loopback":               "127.0.0.1",
		"loopback range":         "127.8.8.8",
		"localhost":              "localhost",
		"loopback, IPv6":         "[::1]",
		"mapped, dotted":         "[::ffff:127.0.0.1]",
		"mapped, hex":            "[::ffff:7f00:1]",
		"compatible":             "[::127.0.0.1]",
		"unspecified":            "0.0.0.0",
		"unspecified, IPv6":      "[::]",
		"this network":           "0.1.2.3",
		"link-local":             "169.254.1.1",
		"link-local, IPv6":       "[fe80::1]",
		"zone":                   "[fe80::1%25lo]",
		"zone, global address":   "[2606:4700::1%25lo]",
		"site-local":             "[fec0::1]",
		"ULA":                    "[fd12:3456::1]",
		"ULA, unassigned half":   "[fc00::1]",
		"private 10":             "10.1.2.3",
		"private 172":            "172.16.0.1",
		"private 172, end":       "172.31.255.255",
		"private 192":            "192.168.0.1",
		"CGNAT":                  "100.64.0.1",
		"CGNAT, end":             "100.127.255.255",
		"NAT64":                  "[64:ff9b::7f00:1]",
		"NAT64, metadata":        "[64:ff9b::a9fe:a9fe]",
		"NAT64, Azure":           "[64:ff9b::a83f:8110]",
		"NAT64, private":         "[64:ff9b::10.1.2.3]",
		"NAT64, port 22":         "[64:ff9b::101:101]:22",
		"NAT64, local":           "[64:ff9b:1::1]",
		"NAT64, local, metadata": "[64:ff9b:1:ffff::a9fe:a9fe]",
		"6to4":                   "[2002:7f00:1::1]",
		"6to4, metadata":         "[2002:a9fe:a9fe::1]",
		"Teredo":                 "[2001:0:a9fe:a9fe::1]",
		"metadata":               "169.254.169.254",
		"metadata, mapped":       "[::ffff:a9fe:a9fe]",
		"metadata, ECS tasks":    "169.254.170.2",
		"metadata, AWS IPv6":     "[fd00:ec2::254]",
		"metadata, Azure":        "168.63.129.16",
		"metadata, Azure mapped": "[::ffff:168.63.129.16]",
		"metadata, Alibaba":      "100.100.100.200",
		"metadata, Oracle":       "192.0.0.192",
		"multicast":              "224.0.0.1",
		"multicast, IPv6":        "[ff02::1]",
		"broadcast":              "255.255.255.255",
		"reserved":               "240.0.0.1",
		"benchmarks":             "198.18.0.1",
		"documentation":          "203.0.113.7",
		"documentation, IPv6":    "[2001:db8::1]",
		"discard":                "[100::1]",
		"port 22":                "1.1.1.1:22",
	}
}

func TestBlockedAddresses(t *testing.T) {
	t.Parallel()
	guards := map[string]*netguard.Guard{
		"default": mustGuard(t, netguard.Config{}),
		// One loopback address is allowed. Its neighbours must stay refused.
		"one allowed": mustGuard(t, netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")}}),
		"http":        mustGuard(t, netguard.Config{AllowHTTP: true}),
		"NAT64":       mustGuard(t, netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}}),
	}
	for gname, g := range guards {
		for name, host := range blockedHosts() {
			t.Run(gname+"/"+name, func(t *testing.T) {
				t.Parallel()
				target := "https://" + host + "/"
				var b *netguard.BlockedError
				if _, err := getURL(t, g.Client(netguard.Limits{}, 3), target); !errors.As(err, &b) {
					t.Fatalf("client: got %v, want a BlockedError", err)
				}
				// The bare transport does not check the URL, so only the dialer can refuse.
				tr := g.Transport(netguard.Limits{})
				if _, err := getURL(t, &http.Client{Transport: tr}, target); !errors.As(err, &b) {
					t.Fatalf("transport: got %v, want a BlockedError", err)
				}
			})
		}
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	strict := mustGuard(t, netguard.Config{})
	dev := mustGuard(t, netguard.Config{AllowNetworks: loopbackNetwork()})
	lax := mustGuard(t, netguard.Config{AllowHTTP: true})
	const ok, refused, blocked = "ok", "refused", "blocked"
	for _, c := range []struct {
		url               string
		strict, dev, http string
	}{
		{"https://example.com/x", ok, ok, ok},
		{"HTTPS://example.com", ok, ok, ok},
		{"https://example.com:8443", ok, ok, ok},
		{"https://1.1.1.1", ok, ok, ok},
		{"https://[2606:4700:4700::1111]", ok, ok, ok},
		{"https://[64:ff9b::101:101]", ok, ok, ok}, // 1.1.1.1, from a machine without IPv4
		{"http://[64:ff9b::101:101]", refused, refused, ok},
		{"http://[64:ff9b::127.0.0.1]:5001", blocked, ok, blocked},
		{"https://1.1.1.1:25", blocked, blocked, blocked},
		{"http://example.com", refused, ok, ok}, // development: the name may resolve to an allowed network
		{"http://1.1.1.1", refused, refused, ok},
		{"http://127.0.0.1:5001", blocked, ok, blocked},
		{"https://127.0.0.1:5001", blocked, ok, blocked},
		{"https://127.0.0.2", blocked, blocked, blocked},
		{"https://168.63.129.16", blocked, blocked, blocked},
		{"https://[3ffe::1]", blocked, blocked, blocked},
		{"https://[3ffe:ffff:ffff:ffff::1]", blocked, blocked, blocked},
		{"https://user:pw@example.com", refused, refused, refused},
		{"https://user@example.com", refused, refused, refused},
		{"https://", refused, refused, refused},
		{"https:///path", refused, refused, refused},
		{"https://example.com:0", refused, refused, refused},
		{"https://example.com:99999", refused, refused, refused},
		{"ftp://example.com", refused, refused, refused},
		{"file:///etc/passwd", refused, refused, refused},
		{"gopher://example.com", refused, refused, refused},
		{"ws://example.com", refused, refused, refused},
		{"https:example.com", refused, refused, refused},
		{"//example.com", refused, refused, refused},
		{"", refused, refused, refused},
	} {
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatalf("%s: %v", c.url, err)
		}
		for _, g := range []struct {
			name  string
			guard *netguard.Guard
			want  string
		}{{"strict", strict, c.strict}, {"dev", dev, c.dev}, {"http", lax, c.http}} {
			err := g.guard.CheckURL(u)
			if kind(err) != g.want {
				t.Errorf("%s %s: %v, want %s", g.name, c.url, err, g.want)
			}
			if err != nil && strings.Contains(err.Error(), "pw") {
				t.Errorf("%s: the message holds the password: %v", c.url, err)
			}
		}
	}
	if err := strict.CheckURL(nil); err == nil {
		t.Error("nil URL accepted")
	}
}

func TestNamesThatResolveInward(t *testing.T) {
	t.Parallel()
	in, out := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.9")
	srv := listen(t, "127.0.0.9:0", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "reached")
	})
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())

	resolver := guardtest.Resolver(t, map[string][][]netip.Addr{
		"inward.test": {{in}},
		"good.test":   {{out}},
		"mixed.test":  {{in, out}},
		"rebind.test": {{out}, {in}},
		"cloud.test":  {{netip.MustParseAddr("169.254.169.254")}},
		"six.test":    {{netip.MustParseAddr("::1")}},
		"ula.test":    {{netip.MustParseAddr("fd00:ec2::254")}},
		"nat64.test":  {{netip.MustParseAddr("64:ff9b::7f00:1")}},
		"dns64.test":  {{netip.MustParseAddr("64:ff9b::127.0.0.9")}},
		"all.test":    {{in, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::1")}},
		"public.test": {{netip.MustParseAddr("1.1.1.1")}},
	})
	g := mustGuard(t, netguard.Config{Resolver: resolver, AllowNetworks: []netip.Prefix{netip.PrefixFrom(out, 32)}})
	for _, c := range [][2]string{
		{"inward.test", "blocked"}, {"cloud.test", "blocked"}, {"six.test", "blocked"}, {"ula.test", "blocked"}, {"nat64.test", "blocked"}, {"all.test", "blocked"},
		{"good.test", "ok"}, {"mixed.test", "ok"},
		{"rebind.test", "ok"}, {"rebind.test", "blocked"}, // the resolver now returns an inner address for the same name
	} {
		_, err := getURL(t, g.Client(netguard.Limits{}, 0), "http://"+c[0]+":"+port)
		heraldtest.Equal(t, c[0], kind(err), c[1])
		if b, ok := errors.AsType[*netguard.BlockedError](err); ok && (b.Host != c[0] || c[0] == "inward.test" && !strings.HasPrefix(b.Address, "127.0.0.1:")) {
			t.Errorf("the error names %q %q", b.Host, b.Address)
		}
	}
	// The allowed address in a NAT64 address may be dialled, although this machine has no NAT64.
	_, err := getURL(t, g.Client(netguard.Limits{}, 0), "http://dns64.test:"+port)
	heraldtest.Contains(t, "an allowed address behind NAT64", kind(err), "could not connect to dns64.test")
	// If an allowed address does not answer, the error does not say that the URL is refused, although another address
	// of the name is refused.
	srv.Close()
	_, err = getURL(t, g.Client(netguard.Limits{}, 0), "http://mixed.test:"+port)
	heraldtest.Fails(t, "mixed name, server down", err)
	heraldtest.Lacks(t, "mixed name, server down", kind(err), "blocked")
	// A name with a public address must not be called over plain http.
	public := mustGuard(t, netguard.Config{Resolver: resolver, AllowNetworks: loopbackNetwork()})
	_, err = getURL(t, public.Client(netguard.Limits{}, 0), "http://public.test")
	heraldtest.Equal(t, "public name over http", kind(err), "refused")
}

// TestSilentNameserver: a guard waits until Go's resolver asks the second nameserver.
func TestSilentNameserver(t *testing.T) {
	t.Parallel()
	resolver := guardtest.Resolver(t, map[string][][]netip.Addr{"agent.test": {{netip.MustParseAddr("10.0.0.1")}}})
	_, _ = resolver.LookupHost(t.Context(), "agent.test") // creates the resolver's state outside the bubble
	next, asked := resolver.Dial, 0
	var mu sync.Mutex
	resolver.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked <= 2 { // A and AAAA
			silent, _ := net.Pipe()
			return silent, nil
		}
		return next(ctx, network, address)
	}
	synctest.Test(t, func(t *testing.T) {
		_, err := getURL(t, mustGuard(t, netguard.Config{Resolver: resolver}).Client(netguard.Limits{}, 0), "https://agent.test/")
		time.Sleep(time.Minute) // the bubble's time: the lookup ends too
		heraldtest.Equal(t, "after the second nameserver answered", kind(err), "blocked")
	})
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var referers []string
	mux := http.NewServeMux()
	mux.HandleFunc("/hop/", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		referers = append(referers, r.Header.Get("Referer")+r.Header.Get("Authorization"))
		mu.Unlock()
		n := r.URL.Path[len("/hop/"):]
		if n == "0" {
			_, _ = io.WriteString(w, "arrived")
			return
		}
		http.Redirect(w, r, "/hop/"+string(n[0]-1), http.StatusFound)
	})
	for path, target := range map[string]string{"/inward": "https://127.0.0.2/", "/metadata": "http://169.254.169.254/latest/", "/file": "file:///etc/passwd",
		"/user": "https://a:b@example.com/", "/plain": "http://1.1.1.1/"} {
		mux.Handle(path, http.RedirectHandler(target, http.StatusFound))
	}
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	g := mustGuard(t, netguard.Config{AllowNetworks: loopbackNetwork(), RootCAs: roots})
	for path, want := range map[string]string{"/hop/3?token=x": "ok", "/hop/4": "too many redirects", "/inward": "blocked", "/metadata": "blocked",
		"/file": "refused", "/user": "refused", "/plain": "refused"} {
		resp, err := getURL(t, g.Client(netguard.Limits{}, 3), srv.URL+path)
		heraldtest.Equal(t, path, kind(err), want)
		if err == nil {
			heraldtest.Equal(t, path, resp.StatusCode, http.StatusOK)
		}
	}
	mu.Lock()
	for _, r := range referers {
		heraldtest.Equal(t, "a hop was sent", r, "")
	}
	mu.Unlock()
	resp, err := getURL(t, g.Client(netguard.Limits{}, 0), srv.URL+"/hop/1")
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "no redirects", resp.StatusCode, http.StatusFound)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/headers":
			w.Header().Set("X-Big", strings.Repeat("x", 1<<20))
		case "/silent":
			<-hold
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, r.Header.Get("Accept-Encoding"))
		}
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(func() { close(hold) })
	g := mustGuard(t, netguard.Config{AllowNetworks: loopbackNetwork()})
	if _, err := getURL(t, g.Client(netguard.Limits{}, 0), srv.URL+"/headers"); err == nil {
		t.Error("1 MiB of headers accepted")
	}
	if _, err := getURL(t, g.Client(netguard.Limits{Header: 20 * time.Millisecond}, 0), srv.URL+"/silent"); err == nil {
		t.Error("a silent server was waited for")
	}
	resp, err := getURL(t, g.Client(netguard.Limits{}, 0), srv.URL+"/gzip")
	heraldtest.Must(t, err)
	if body, _ := io.ReadAll(resp.Body); len(body) != 0 {
		t.Errorf("compression was offered: %q", body)
	}
	if tr := g.Transport(netguard.Limits{}); tr.Proxy != nil {
		t.Error("the transport has a proxy")
	}
}

func TestNewRefusesBadNetworks(t *testing.T) {
	t.Parallel()
	for _, p := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")} {
		if _, err := netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{p}}); err == nil {
			t.Errorf("%v accepted", p)
		}
	}
}

// TestConfigured: an agent that the operator configured may have any address except that of a metadata service.
func TestConfigured(t *testing.T) {
	t.Parallel()
	strict := mustGuard(t, netguard.Config{})
	for target, want := range map[string]bool{
		"http://127.0.0.1:3000/":    true,
		"http://[::1]:3000/":        true,
		"http://10.1.2.3/":          true,
		"https://172.16.0.1:9/":     true,
		"http://192.168.1.1:8080/":  true,
		"http://100.64.0.9/":        true,
		"http://[fd12::1]/":         true,
		"http://1.1.1.1:3000/":      true,
		"http://name.internal/":     true,
		"http://169.254.169.254/":   false,
		"http://[fe80::1]/":         false,
		"http://100.100.100.200/":   false,
		"http://[fd00:ec2::254]/":   false,
		"http://[fd20:ce::254]/":    false,
		"http://168.63.129.16/":     false,
		"http://0.0.0.0/":           false,
		"http://224.0.0.1/":         false,
		"ftp://10.0.0.1/":           false,
		"http://user:pw@10.0.0.1/":  false,
		"http://[::ffff:10.0.0.1]/": true,
		"http://[64:ff9b::a00:1]/":  true,
		"http://[64:ff9b::a9fe:1]/": false,
	} {
		u, err := url.Parse(target)
		heraldtest.Must(t, err)
		if err := strict.Configured().CheckURL(u); (err == nil) != want {
			t.Errorf("%s: %v", target, err)
		}
		// Calling Configured twice has the same effect as once.
		if err := strict.Configured().Configured().CheckURL(u); (err == nil) != want {
			t.Errorf("%s, twice: %v", target, err)
		}
		if err := strict.CheckURL(u); err == nil {
			t.Errorf("%s passes the guard for strangers' addresses", target)
		}
	}
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	_, err := getURL(t, strict.Configured().Client(netguard.Limits{}, 0), srv.URL)
	heraldtest.Must(t, err)
	meta := mustGuard(t, netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("100.100.100.200/32")}})
	heraldtest.Must(t, meta.Configured().CheckURL(&url.URL{Scheme: "http", Host: "100.100.100.200"}))
}

// kind returns a short name of an error.
func kind(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, new(*netguard.BlockedError)):
		return "blocked"
	case errors.As(err, new(*netguard.RefusedURLError)):
		return "refused"
	case errors.As(err, new(*netguard.RedirectError)):
		return "too many redirects"
	}
	return err.Error()
}

// listen serves h at an address of this machine.
func listen(t *testing.T, address string, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip(address, " is not this machine's: ", err)
	}
	srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}}
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}
