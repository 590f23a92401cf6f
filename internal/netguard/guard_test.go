package netguard_test

import (
	"context"
	"crypto/x509"
	"encoding/binary"
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
	"time"

	"go.uber.org/goleak"

	"github.com/agentherald/herald/internal/netguard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustGuard(t *testing.T, cfg netguard.Config) *netguard.Guard {
	t.Helper()
	g, err := netguard.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} }

// fakeDNS answers A questions over UDP. The answers of one name are given in
// turn, the last one for ever, which is how a rebinding resolver behaves.
func fakeDNS(t *testing.T, names map[string][][]netip.Addr) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			q := buf[:n]
			if n < 17 {
				continue
			}
			i, labels := 12, []string{}
			for i < n && q[i] != 0 {
				l := int(q[i])
				labels = append(labels, string(q[i+1:i+1+l]))
				i += l + 1
			}
			end := i + 5 // root label, type, class
			name := strings.ToLower(strings.Join(labels, "."))
			var addrs []netip.Addr
			if binary.BigEndian.Uint16(q[i+1:]) == 1 {
				if turns := names[name]; len(turns) > 0 {
					addrs = turns[0]
					if len(turns) > 1 {
						names[name] = turns[1:]
					}
				}
			}
			a := append([]byte{}, q[:end]...)
			binary.BigEndian.PutUint16(a[2:], 0x8180)
			binary.BigEndian.PutUint16(a[6:], uint16(len(addrs)))
			binary.BigEndian.PutUint16(a[8:], 0)
			binary.BigEndian.PutUint16(a[10:], 0)
			for _, ip := range addrs {
				v4 := ip.As4()
				a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				a = append(a, v4[:]...)
			}
			_, _ = pc.WriteTo(a, from)
		}
	})
	t.Cleanup(func() { _ = pc.Close(); done.Wait() })
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "udp", pc.LocalAddr().String())
		},
	}
}

func get(t *testing.T, c *http.Client, target string) (*http.Response, error) {
	t.Helper()
	t.Cleanup(c.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err == nil {
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	return resp, err
}

func TestBlockedAddresses(t *testing.T) {
	t.Parallel()
	guards := map[string]*netguard.Guard{
		"default": mustGuard(t, netguard.Config{}),
		// One loopback address allowed: its neighbours must stay refused.
		"one allowed": mustGuard(t, netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")}}),
		"http":        mustGuard(t, netguard.Config{AllowHTTP: true}),
	}
	hosts := map[string]string{
		"loopback":          "127.0.0.1",
		"loopback range":    "127.8.8.8",
		"localhost":         "localhost",
		"loopback 6":        "[::1]",
		"mapped":            "[::ffff:127.0.0.1]",
		"mapped hex":        "[::ffff:7f00:1]",
		"unspecified":       "0.0.0.0",
		"unspecified 6":     "[::]",
		"link local":        "169.254.169.254",
		"AWS metadata 6":    "[fd00:ec2::254]",
		"Azure wire server": "168.63.129.16",
		"Alibaba metadata":  "100.100.100.200",
		"Oracle metadata":   "192.0.0.192",
		"NAT64":             "[64:ff9b::7f00:1]",
		"NAT64 local":       "[64:ff9b:1::1]",
		"6to4":              "[2002:7f00:1::1]",
		"zone":              "[fe80::1%25lo]",
		"zone, global":      "[2606:4700::1%25lo]",
		"site local":        "[fec0::1]",
		"ULA":               "[fd12::1]",
		"private 10":        "10.1.2.3",
		"private 172":       "172.16.0.1",
		"private 192":       "192.168.0.1",
		"CGNAT":             "100.64.0.1",
		"multicast":         "224.0.0.1",
		"broadcast":         "255.255.255.255",
		"documentation":     "203.0.113.7",
		"port 22":           "1.1.1.1:22",
	}
	for gname, g := range guards {
		for name, host := range hosts {
			t.Run(gname+"/"+name, func(t *testing.T) {
				t.Parallel()
				target := "https://" + host + "/"
				var b *netguard.BlockedError
				if _, err := get(t, g.Client(netguard.Limits{}, 3), target); !errors.As(err, &b) {
					t.Fatalf("client: got %v, want a BlockedError", err)
				}
				// The bare transport has no URL check: only the dialer stands.
				tr := g.Transport(netguard.Limits{})
				if _, err := get(t, &http.Client{Transport: tr}, target); !errors.As(err, &b) {
					t.Fatalf("transport: got %v, want a BlockedError", err)
				}
			})
		}
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	strict := mustGuard(t, netguard.Config{})
	dev := mustGuard(t, netguard.Config{AllowNetworks: loopback()})
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
		{"https://1.1.1.1:25", blocked, blocked, blocked},
		{"http://example.com", refused, ok, ok}, // dev: the name may lie in an allowed network
		{"http://1.1.1.1", refused, refused, ok},
		{"http://127.0.0.1:5001", blocked, ok, blocked},
		{"https://127.0.0.1:5001", blocked, ok, blocked},
		{"https://127.0.0.2", blocked, blocked, blocked},
		{"https://168.63.129.16", blocked, blocked, blocked},
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
			var r *netguard.RefusedURLError
			var b *netguard.BlockedError
			got := ok
			switch {
			case errors.As(err, &b):
				got = blocked
			case errors.As(err, &r):
				got = refused
			case err != nil:
				got = err.Error()
			}
			if got != g.want {
				t.Errorf("%s %s: %s (%v), want %s", g.name, c.url, got, err, g.want)
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
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "reached")
	}))
	ln, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Skip("127.0.0.9 is not this machine's: ", err)
	}
	srv.Listener = ln
	srv.Start()
	t.Cleanup(srv.Close)
	_, port, _ := net.SplitHostPort(ln.Addr().String())

	resolver := fakeDNS(t, map[string][][]netip.Addr{
		"inward.test": {{in}},
		"good.test":   {{out}},
		"mixed.test":  {{in, out}},
		"rebind.test": {{out}, {in}},
	})
	g := mustGuard(t, netguard.Config{Resolver: resolver, AllowNetworks: []netip.Prefix{netip.PrefixFrom(out, 32)}})

	var b *netguard.BlockedError
	if _, err := get(t, g.Client(netguard.Limits{}, 0), "http://inward.test:"+port); !errors.As(err, &b) {
		t.Errorf("inward name: %v", err)
	} else if b.Host != "inward.test" || !strings.HasPrefix(b.Address, "127.0.0.1:") {
		t.Errorf("the error names %q %q", b.Host, b.Address)
	}
	for _, host := range []string{"good.test", "mixed.test", "rebind.test"} {
		if _, err := get(t, g.Client(netguard.Limits{}, 0), "http://"+host+":"+port); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	// The same name again, the resolver now answers with an inner address.
	if _, err := get(t, g.Client(netguard.Limits{}, 0), "http://rebind.test:"+port); !errors.As(err, &b) {
		t.Errorf("rebound name: %v", err)
	}
	// An allowed address that does not answer is not a verdict on the URL,
	// though another address of the name is refused.
	srv.Close()
	_, err = get(t, g.Client(netguard.Limits{}, 0), "http://mixed.test:"+port)
	if err == nil || errors.As(err, &b) {
		t.Errorf("mixed name, server down: %v", err)
	}
	// A name whose address is public may not be asked over plain http.
	public := mustGuard(t, netguard.Config{
		Resolver:      fakeDNS(t, map[string][][]netip.Addr{"public.test": {{netip.MustParseAddr("1.1.1.1")}}}),
		AllowNetworks: loopback(),
	})
	var r *netguard.RefusedURLError
	if _, err = get(t, public.Client(netguard.Limits{}, 0), "http://public.test"); !errors.As(err, &r) {
		t.Errorf("public name over http: %v", err)
	}
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
	to := func(target string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target, http.StatusFound) }
	}
	mux.HandleFunc("/inward", to("https://127.0.0.2/"))
	mux.HandleFunc("/metadata", to("http://169.254.169.254/latest/"))
	mux.HandleFunc("/file", to("file:///etc/passwd"))
	mux.HandleFunc("/user", to("https://a:b@example.com/"))
	mux.HandleFunc("/plain", to("http://1.1.1.1/"))
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	g := mustGuard(t, netguard.Config{AllowNetworks: loopback(), RootCAs: roots})

	if resp, err := get(t, g.Client(netguard.Limits{}, 3), srv.URL+"/hop/3?token=x"); err != nil || resp.StatusCode != 200 {
		t.Fatalf("three redirects: %v", err)
	}
	mu.Lock()
	for _, r := range referers {
		if r != "" {
			t.Errorf("a hop was sent %q", r)
		}
	}
	mu.Unlock()
	var many *netguard.RedirectError
	if _, err := get(t, g.Client(netguard.Limits{}, 3), srv.URL+"/hop/4"); !errors.As(err, &many) {
		t.Errorf("four redirects: %v", err)
	}
	if resp, err := get(t, g.Client(netguard.Limits{}, 0), srv.URL+"/hop/1"); err != nil || resp.StatusCode != http.StatusFound {
		t.Errorf("no redirects: %v %v", resp, err)
	}
	var b *netguard.BlockedError
	for _, p := range []string{"/inward", "/metadata"} {
		if _, err := get(t, g.Client(netguard.Limits{}, 3), srv.URL+p); !errors.As(err, &b) {
			t.Errorf("%s: %v", p, err)
		}
	}
	var r *netguard.RefusedURLError
	for _, p := range []string{"/file", "/user", "/plain"} {
		if _, err := get(t, g.Client(netguard.Limits{}, 3), srv.URL+p); !errors.As(err, &r) {
			t.Errorf("%s: %v", p, err)
		}
	}
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
	g := mustGuard(t, netguard.Config{AllowNetworks: loopback()})
	if _, err := get(t, g.Client(netguard.Limits{}, 0), srv.URL+"/headers"); err == nil {
		t.Error("1 MiB of headers accepted")
	}
	if _, err := get(t, g.Client(netguard.Limits{Header: 20 * time.Millisecond}, 0), srv.URL+"/silent"); err == nil {
		t.Error("a silent server was waited for")
	}
	resp, err := get(t, g.Client(netguard.Limits{}, 0), srv.URL+"/gzip")
	if err != nil {
		t.Fatal(err)
	}
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
	// A denied network of the operator's own.
	g := mustGuard(t, netguard.Config{DenyNetworks: []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24")}})
	var b *netguard.BlockedError
	if err := g.CheckURL(&url.URL{Scheme: "https", Host: "8.8.8.8"}); !errors.As(err, &b) {
		t.Errorf("denied network: %v", err)
	}
}
