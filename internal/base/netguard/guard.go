package netguard

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// Config configures which destinations are allowed in addition to public https.
type Config struct {
	// AllowNetworks (HERALD_ALLOW_NETWORKS) are allowed although they are not public, on any port and over plain
	// http. By default the list is empty.
	AllowNetworks []netip.Prefix

	// AllowHTTP (HERALD_ALLOW_HTTP) allows plain http to every address that https may reach. The default is false,
	// because anyone on the network path could read and change the traffic.
	AllowHTTP bool

	// Ports are the ports that may be connected outside AllowNetworks. The default is 80, 443, 8443.
	Ports []uint16

	// RootCAs replaces the system's certificate authorities. The default is nil.
	RootCAs *x509.CertPool

	// Resolver replaces the system's name resolution. The default is nil.
	Resolver *net.Resolver
}

// alwaysDenied contains public prefixes that the special-purpose registries do not list: Azure's wire server, which
// is a metadata service, and the 6bone, which was returned to IANA (RFC 3701) and has no public routes.
var alwaysDenied = []netip.Prefix{netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("3ffe::/16")}

// privatePrefixes are the networks that Configured adds: loopback, RFC 1918, RFC 6598, RFC 4193.
var privatePrefixes = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

// privateMetadata are metadata services inside privatePrefixes: those of Alibaba, AWS and Google over IPv6.
var privateMetadata = []netip.Addr{
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
}

// Guard checks and dials untrusted addresses. It is safe for concurrent use.
type Guard struct {
	guardian  *ssrf.Guardian
	allow     []netip.Prefix
	never     []netip.Addr // refused although a prefix of allow contains them
	allowHTTP bool
	ports     []uint16 // nil means any port
	roots     *x509.CertPool
	resolver  *net.Resolver
}

// New validates the configuration and returns a Guard.
func New(cfg Config) (*Guard, error) {
	g := &Guard{
		allowHTTP: cfg.AllowHTTP,
		ports:     slices.Clone(cfg.Ports),
		roots:     cfg.RootCAs,
		resolver:  cfg.Resolver,
	}
	if len(g.ports) == 0 {
		g.ports = []uint16{80, 443, 8443}
	}
	var err error
	if g.allow, err = checkPrefixes(cfg.AllowNetworks); err != nil {
		return nil, err
	}
	g.never = slices.DeleteFunc(slices.Clone(privateMetadata), func(a netip.Addr) bool {
		return containsAddr(g.allow, a)
	})
	g.buildGuardian()
	return g, nil
}

// Configured returns a guard for addresses that the operator wrote in a trusted file. It also allows private
// networks, loopback, plain http and every port. All other rules stay: metadata services are refused.
func (g *Guard) Configured() *Guard {
	c := *g
	c.allowHTTP, c.ports = true, nil
	c.allow = append(slices.Clone(g.allow), privatePrefixes...)
	c.buildGuardian()
	return &c
}

// buildGuardian builds the library's guardian from the networks.
func (g *Guard) buildGuardian() {
	allow4, allow6 := splitByFamily(g.allow)
	deny4, deny6 := splitByFamily(alwaysDenied)
	g.guardian = ssrf.New(
		ssrf.WithAnyPort(), // the port rule has an exception, see checkAddress
		ssrf.WithAllowedV4Prefixes(allow4...), ssrf.WithAllowedV6Prefixes(allow6...),
		ssrf.WithDeniedV4Prefixes(deny4...), ssrf.WithDeniedV6Prefixes(deny6...),
	)
}

// checkPrefixes validates networks and returns them in masked form.
func checkPrefixes(in []netip.Prefix) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(in))
	for _, p := range in {
		if !p.IsValid() {
			return nil, errors.New("netguard: an allowed network is not a valid prefix; " +
				"write it as 10.0.0.0/8 or fd00::/8")
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("netguard: allowed network %s is an IPv4 network in IPv6 spelling; "+
				"write it as IPv4", p)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func containsAddr(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func splitByFamily(in []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, p := range in {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return v4, v6
}

// CheckURL rejects URLs that can be rejected without resolving a name. These are schemes other than https (and http,
// where it may be allowed), user information, a missing host, an invalid port, and literal addresses that would be
// blocked. A nil result is not final: the address is checked again when it is connected. Errors: *RefusedURLError,
// *BlockedError.
func (g *Guard) CheckURL(u *url.URL) error {
	if u == nil {
		return &RefusedURLError{Why: "there is no URL"}
	}
	host := u.Hostname()
	scheme := strings.ToLower(u.Scheme)
	switch {
	case scheme != "https" && scheme != "http":
		return &RefusedURLError{Host: host, Why: fmt.Sprintf("its scheme is %.20q, only https is dialled", scheme)}
	case host == "":
		return &RefusedURLError{Why: "it names no host"}
	case u.User != nil:
		return &RefusedURLError{Host: host, Why: "it carries user information"}
	}
	port := uint16(443)
	if scheme == "http" {
		port = 80
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return &RefusedURLError{Host: host, Why: "its port is not a number from 1 to 65535"}
		}
		port = uint16(n)
	}
	addr, err := netip.ParseAddr(host)
	if err != nil { // the host is a name
		if scheme == "http" && !g.allowHTTP && len(g.allow) == 0 {
			return newRefusedHTTP(host)
		}
		return nil
	}
	return g.checkAddress(scheme, host, netip.AddrPortFrom(addr, port))
}

func newRefusedHTTP(host string) error {
	return &RefusedURLError{Host: host, Why: "plain http is not allowed to public addresses (HERALD_ALLOW_HTTP)"}
}

// unwrapAddr returns the IPv4 address in an IPv4-mapped address, or in one with the well-known prefix of NAT64
// (RFC 6052), through which machines without IPv4 reach all IPv4 addresses. It returns other addresses unchanged.
func unwrapAddr(addr netip.Addr) netip.Addr {
	if ssrf.IPv6NAT64Prefix.Contains(addr) {
		bytes := addr.As16()
		return netip.AddrFrom4([4]byte(bytes[12:]))
	}
	return addr.Unmap()
}

// checkAddress applies all rules to one address.
func (g *Guard) checkAddress(scheme, host string, ap netip.AddrPort) error {
	addr := unwrapAddr(ap.Addr())
	blocked := func(why string) error {
		return &BlockedError{Host: host, Address: ap.String(), Why: why}
	}
	if addr.Zone() != "" {
		return blocked("it is an address with a zone")
	}
	if err := g.guardian.SafeAddr(addr); err != nil {
		return blocked(
			"it is not a public address. If this address is intended, add its network to HERALD_ALLOW_NETWORKS")
	}
	switch {
	case slices.Contains(g.never, addr):
		return blocked("it is a cloud's metadata service")
	case containsAddr(g.allow, addr):
		return nil
	}
	if g.ports != nil && !slices.Contains(g.ports, ap.Port()) {
		return blocked(fmt.Sprintf("port %d is not among the allowed ports %d", ap.Port(), g.ports))
	}
	if scheme == "http" && !g.allowHTTP {
		return newRefusedHTTP(host)
	}
	return nil
}

// dial connects to address, which is host:port, and checks every address to which the host's name resolves. It
// returns *BlockedError or *RefusedURLError only if no address of the host was allowed. If an allowed address did not
// answer, the error is an ordinary failure, which may be temporary.
func (g *Guard) dial(ctx context.Context, scheme, network, address string, timeout time.Duration) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &RefusedURLError{Why: "its address has no port"}
	}
	// The dialer tries addresses in parallel and may return before the last attempt ended, so a lock is needed.
	var (
		mu       sync.Mutex
		refusal  error
		admitted bool
	)
	d := net.Dialer{
		Timeout:  timeout,
		Resolver: g.resolver,
		Control: func(_, address string, _ syscall.RawConn) error {
			err := g.controlDial(scheme, host, address)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				admitted = true
			} else if refusal == nil {
				refusal = err
			}
			return err
		},
	}
	conn, err := d.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	mu.Lock()
	defer mu.Unlock()
	if refusal == nil {
		return nil, explainDial(ctx, host, timeout, err)
	}
	if !admitted {
		return nil, refusal
	}
	var b *BlockedError
	var r *RefusedURLError
	if errors.As(err, &b) || errors.As(err, &r) {
		return nil, fmt.Errorf("none of the allowed addresses of %s answered", host)
	}
	return nil, explainDial(ctx, host, timeout, err)
}

// explainDial describes a failed dial, with both the requested name and the address that it resolved to.
func explainDial(ctx context.Context, host string, timeout time.Duration, err error) error {
	var op *net.OpError
	var dns *net.DNSError
	if !errors.As(err, &op) || errors.As(err, &dns) || op.Addr == nil {
		return Explain("the server", timeout, err)
	}
	where := op.Addr.String()
	if at, _, _ := net.SplitHostPort(where); at != host {
		where = fmt.Sprintf("%s (%s)", host, where)
	}
	if ctx.Err() != nil {
		timeout = 0 // the caller had less time than the dialer
	}
	return &FailureError{Text: describeConnect(where, timeout, op.Err), Cause: err}
}

// controlDial checks an address before it is connected. net.Dialer calls it for each address.
func (g *Guard) controlDial(scheme, host, address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &BlockedError{Host: host, Address: address, Why: "it is not an IP address and port"}
	}
	return g.checkAddress(scheme, host, ap)
}
