// Package guardtest supports tests of code that dials untrusted addresses. It provides a listener that counts
// connections, and a resolver with configurable answers.
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
