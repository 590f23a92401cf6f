// Package guardtest supports tests of code that dials untrusted addresses. It provides hosts that must never be
// connected, a listener that counts connections, and a resolver with configurable answers.
package guardtest

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// Inward returns hosts, as they are written in URLs, that lead to this machine, its network or its cloud's metadata
// service. The keys describe the hosts. A guard without an allow list must not dial any of them.
func Inward() map[string]string {
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
	}
}

// Loopback returns a guard that allows this machine's own servers. It uses resolver, or the system's resolver if it
// is nil.
func Loopback(t testing.TB, resolver *net.Resolver) *netguard.Guard {
	t.Helper()
	guard, err := netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Resolver: resolver})
	heraldtest.Must(t, err)
	return guard
}

// Tripwire is a server that must not be reached.
type Tripwire struct {
	Addr  netip.AddrPort
	conns atomic.Int64
}

// Listen starts a tripwire at an address of this machine, on a free port, until the test ends.
func Listen(t testing.TB, addr string) *Tripwire {
	t.Helper()
	w := &Tripwire{}
	w.Addr = netip.MustParseAddrPort(heraldtest.ListenAt(t, addr, func(c net.Conn) {
		w.conns.Add(1)
		_ = c.Close() // it was counted
	}))
	return w
}

// Connections returns how many times the tripwire was reached.
func (w *Tripwire) Connections() int64 { return w.conns.Load() }

// Resolver returns a resolver that answers A and AAAA queries over UDP. The answers of a name are returned in turn,
// and the last one forever, as a rebinding resolver does. Names that are not in names have no addresses.
func Resolver(t testing.TB, names map[string][][]netip.Addr) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	heraldtest.Must(t, err)
	var done sync.WaitGroup
	done.Go(func() {
		asked := make(map[string]int) // by name and type
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if a := answerQuestion(buf[:n], names, asked); a != nil {
				_, _ = pc.WriteTo(a, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = pc.Close() // only to end the loop
		done.Wait()
	})
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "udp", pc.LocalAddr().String())
		},
	}
}

// answerQuestion returns the answer to a query for one name, or nil if the query is malformed.
func answerQuestion(query []byte, names map[string][][]netip.Addr, asked map[string]int) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	if turns := names[name]; len(turns) > 0 {
		key := name + q.Type.String()
		add := func(body dnsmessage.ResourceBody) {
			header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: body})
		}
		for _, ip := range turns[min(asked[key], len(turns)-1)] {
			switch {
			case ip.Is4() && q.Type == dnsmessage.TypeA:
				add(&dnsmessage.AResource{A: ip.As4()})
			case ip.Is6() && q.Type == dnsmessage.TypeAAAA:
				add(&dnsmessage.AAAAResource{AAAA: ip.As16()})
			}
		}
		asked[key]++
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}
