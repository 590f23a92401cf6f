package resolver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const mcpAt = `"services":[{"name":"MCP","endpoint":"https://a.example/mcp"}]`

// TestBinding checks the binding that follows from the list of an endpoint's domain, and the policy's effect on it.
func TestBinding(t *testing.T) {
	t.Parallel()
	named := "{" + naming(7) + "}"
	away := &ipfs.UnavailableError{URI: "x", RetryAfter: time.Minute, Err: errors.New("the server answered 503")}
	plain := func(context.Context) (ipfs.Document, error) {
		return ipfs.Document{Bytes: []byte(named), Source: ipfs.SourceHTTP}, nil
	}
	elsewhere := func(context.Context) (ipfs.Document, error) {
		return ipfs.Document{Bytes: []byte(named), Source: ipfs.SourceHTTPS, Origin: "https://a.example:8443"}, nil
	}
	for name, c := range map[string]struct {
		domain  domain
		binding string
		why     string // part of the step's Detail
	}{
		"names it":         {lists(named), resolver.BoundByDomain, "names the agent"},
		"a whole document": {lists(document(mcpAt + "," + naming(7))), resolver.BoundByDomain, "names the agent"},
		"another agent":    {lists("{" + naming(8) + "}"), resolver.Unbound, "it names 1 other agent, not this agent"},
		"another chain":    {lists(strings.ReplaceAll(named, "8453", "1")), resolver.Unbound, "not this agent"},
		"no list":          {lists(`{"name":"x"}`), resolver.Unbound, "it names 0 other agents"},
		"missing":          {nil, resolver.Unbound, "was not found"},
		"HTML":             {lists("<!doctype html>"), resolver.Unbound, "web page"},
		"no JSON":          {lists("hello\x1b[31m"), resolver.Unbound, "not JSON"},
		"an array":         {lists("[" + named + "]"), resolver.Unbound, "not an object"},
		"empty":            {lists(""), resolver.Unbound, "empty"},
		"64 KiB":           {lists(named + strings.Repeat(" ", 64<<10-len(named))), resolver.BoundByDomain, "names the agent"},
		"too large":        {lists(named + strings.Repeat(" ", 64<<10)), resolver.Unbound, "larger than 65536 bytes"},
		"blocked":          {fails(fmt.Errorf("fetching: %w", &netguard.BlockedError{Address: "10.0.0.1:443", Why: "it is not a public address"})), resolver.Unbound, "blocked"},
		"refused URL":      {fails(&netguard.RefusedURLError{Host: "a.example", Why: "of its port"}), resolver.Unbound, "refused"},
		"by plain http":    {plain, resolver.Unbound, "another origin"},
		"of another port":  {elsewhere, resolver.Unbound, "another origin"},
		"unavailable":      {fails(away), resolver.BindingUnknown, "503"},
		"answers 405":      {fails(&ipfs.UnavailableError{URI: "x", Status: 405, Err: errors.New("the server answered 405")}), resolver.Unbound, "405"},
		"answers 401":      {fails(&ipfs.UnavailableError{URI: "x", Status: 401, Err: errors.New("the server answered 401")}), resolver.Unbound, "401"},
		"answers 429":      {fails(&ipfs.UnavailableError{URI: "x", Status: 429, Err: errors.New("the server answered 429")}), resolver.BindingUnknown, "429"},
		"answers 500":      {fails(&ipfs.UnavailableError{URI: "x", Status: 500, Err: errors.New("the server answered 500")}), resolver.BindingUnknown, "500"},
		"of a CID": {func(context.Context) (ipfs.Document, error) {
			return ipfs.Document{Bytes: []byte(named), Source: ipfs.SourceCID}, nil
		}, resolver.Unbound, "no domain"},
		"slow":           {fails(fmt.Errorf("fetching: %w", context.DeadlineExceeded)), resolver.BindingUnknown, "deadline"},
		"something else": {fails(errors.New("odd")), resolver.BindingUnknown, "odd"},
	} {
		for _, policy := range []string{"off", "", "warn", "require"} {
			t.Run(name+"/"+policy, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, resolver.Config{Binding: policy})
				w.chain.set("7", data(document(mcpAt)))
				w.domains.set("https://a.example", c.domain)
				got, err := w.Resolve(t.Context(), agent(7, 0))
				want := "ok"
				if policy == "require" {
					want = map[string]string{resolver.BoundByDomain: "ok", resolver.Unbound: "unbound", resolver.BindingUnknown: "unavailable"}[c.binding]
				}
				if nameError(err) != want {
					t.Fatalf("%s: %v, want %s", nameError(err), err, want)
				}
				binding, asked, step := c.binding, []string{"https://a.example" + wellKnown}, c.why
				if name == "empty" || name == "no JSON" { // perhaps the server was replacing it
					asked = append(asked, asked[0])
				}
				if policy == "off" {
					binding, asked, step = "", nil, "HERALD_BINDING is off"
				}
				if got.Binding != binding || got.Bound() != (binding == resolver.BoundByDomain) {
					t.Errorf("binding %q, bound %t", got.Binding, got.Bound())
				}
				if a := w.domains.take(); !slices.Equal(a, asked) {
					t.Errorf("asked %q", a)
				}
				i := slices.IndexFunc(got.Steps, func(s resolver.Step) bool { return s.What == "binding" })
				if i < 0 || !strings.Contains(got.Steps[i].Detail, step) || strings.ContainsRune(got.Steps[i].Detail, 0x1b) {
					t.Errorf("steps %+v", got.Steps)
				}
				if err == nil && got.URL != "https://a.example/mcp" {
					t.Errorf("%+v", got)
				}
				looksRight(t, err)
			})
		}
	}
}

// looksRight checks that the error names the missing entry and the file that needs it, and that no error of the guard
// is part of it.
func looksRight(t *testing.T, err error) {
	t.Helper()
	if errors.As(err, new(*netguard.BlockedError)) || errors.As(err, new(*netguard.RefusedURLError)) {
		t.Errorf("the guard's verdict on the domain's list became the delivery's: %v", err)
	}
	if !errors.As(err, new(*resolver.UnboundError)) {
		return
	}
	for _, want := range []string{`{"agentId":7,"agentRegistry":"eip155:8453:` + registry.Hex() + `"}`, "registrations[]", "https://a.example" + wellKnown} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

// TestDomainIsAskedOnce: the list of a domain is fetched once for all agents of that domain. After a failure it is
// fetched again.
func TestDomainIsAskedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	w.domains.set("https://a.example", lists("{"+naming(9)+"}"))
	for i := range 20 {
		w.chain.set(fmt.Sprint(i), data(document(mcpAt)))
		got, err := w.Resolve(t.Context(), agent(int64(i), 0))
		if err != nil || got.Bound() != (i == 9) {
			t.Errorf("agent %d: bound %t, %v", i, got.Bound(), err)
		}
	}
	heraldtest.Equal(t, "the number of questions", len(w.domains.take()), 1)
	w.clock.Advance(time.Minute)
	w.domains.set("https://a.example", fails(&ipfs.UnavailableError{Status: 500, Err: errors.New("the server answered 500")}))
	for i := range 2 {
		w.chain.set(fmt.Sprint(30+i), data(document(mcpAt)))
		if got := w.resolve(t, int64(30+i), 0, "ok"); got.Binding != resolver.BindingUnknown {
			t.Error(got.Binding)
		}
	}
	heraldtest.Equal(t, "the number of questions", len(w.domains.take()), 1)
	w.clock.Advance(15 * time.Second)
	w.domains.set("https://a.example", lists("{"+naming(50)+"}"))
	for i, host := range []string{"a.example", "A.example", "a.Example:443", "a.example."} {
		w.chain.set(fmt.Sprint(50+i), data(document(strings.ReplaceAll(mcpAt, "a.example", host))))
		if got := w.resolve(t, int64(50+i), 0, "ok"); got.Bound() != (i == 0) {
			t.Errorf("%s: %s", host, got.Binding)
		}
	}
	heraldtest.Equal(t, "spelt otherwise: asked", len(w.domains.take()), 1)
}

// TestBindingOfDocument: a document binds the agent if the endpoint's own origin serves it over https. A document from
// elsewhere never binds, even if its content is correct.
func TestBindingOfDocument(t *testing.T) {
	t.Parallel()
	const at = "https://a.example/agent.json"
	web := func(members string) ipfs.Document {
		return ipfs.Document{Bytes: []byte(document(members)), Source: ipfs.SourceHTTPS, Origin: "https://a.example", URI: at}
	}
	mcp := func(endpoint string) string { return `"services":[{"name":"MCP","endpoint":"` + endpoint + `"}]` }
	from := func(source string, origin netguard.Origin) ipfs.Document {
		d := web(naming(7) + "," + mcpAt)
		d.Source, d.Origin = source, origin
		return d
	}
	for name, c := range map[string]struct {
		doc  ipfs.Document
		want string
	}{
		"the endpoint's origin":          {web(mcpAt), resolver.BoundByOrigin},
		"and it names the agent":         {web(naming(7) + "," + mcpAt), resolver.BoundByOrigin},
		"and it was not minted yet":      {web(`"registrations":[{"agentId":null}],` + mcpAt), resolver.BoundByOrigin},
		"spelt otherwise":                {web(mcp("https://A.Example.:443/mcp")), resolver.BoundByOrigin},
		"but it names another agent":     {web(naming(8) + "," + mcpAt), resolver.Unbound},
		"another port":                   {web(naming(7) + "," + mcp("https://a.example:8443/mcp")), resolver.Unbound},
		"another host of the domain":     {web(naming(7) + "," + mcp("https://user1.a.example/mcp")), resolver.Unbound},
		"another scheme":                 {web(naming(7) + "," + mcp("http://a.example/mcp")), resolver.Unbound},
		"another origin":                 {from(ipfs.SourceHTTPS, "https://b.example"), resolver.Unbound},
		"redirected, or by a gateway":    {from(ipfs.SourceHTTPS, ""), resolver.Unbound},
		"by plain http":                  {from(ipfs.SourceHTTP, "http://a.example"), resolver.Unbound},
		"content that the host serves":   {from(ipfs.SourceCID, ""), resolver.Unbound},
		"a name that the host serves":    {from(ipfs.SourceIPNS, ""), resolver.Unbound},
		"on chain":                       {from(ipfs.SourceData, ""), resolver.Unbound},
		"a command, whoever serves that": {web(naming(7) + `,"capabilities":{"mcp":{"command":"agent"}}`), resolver.Unbound},
	} {
		for _, policy := range []string{"off", "warn", "require"} {
			w := newWorld(t, resolver.Config{Binding: policy, StdioCommands: [][]string{{"agent"}}})
			w.chain.set("7", at)
			w.domains.set(at, func(context.Context) (ipfs.Document, error) { return c.doc, nil })
			want, failure := c.want, "ok"
			switch {
			case c.want != resolver.Unbound:
			case policy == "off":
				want = ""
			case policy == "require":
				failure = "unbound"
			}
			got, err := w.Resolve(t.Context(), agent(7, 0))
			if nameError(err) != failure || got.Binding != want || got.Bound() != (want == resolver.BoundByOrigin) {
				t.Errorf("%s, %s: %q, %v", name, policy, got.Binding, err)
			}
			if asked := w.domains.take(); len(asked) > 0 && (want == resolver.BoundByOrigin || policy == "off") {
				t.Errorf("%s, %s: asked %q", name, policy, asked)
			}
		}
	}
	// The domain is not asked if there is nothing to call.
	w := newWorld(t, resolver.Config{Binding: "require"})
	for want, doc := range map[string]string{
		"no_mcp_endpoint":   document(`"services":[]`),
		"agent_inactive":    document(`"active":false,` + mcpAt),
		"transport_refused": document(`"services":[{"name":"MCP","endpoint":"wss://a.example"}]`),
	} {
		w.chain.set("7", data(doc))
		w.resolve(t, 7, 0, want)
		w.clock.Advance(time.Hour)
	}
	if asked := w.domains.take(); len(asked) > 0 {
		t.Errorf("asked %q", asked)
	}
}

// TestBindingIsAskedThroughTheGuard: the list is requested from the endpoint's own scheme, host and port, without parts
// of its path, and never from an inner network.
func TestBindingIsAskedThroughTheGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	w.site.setList("{" + naming(7) + "}")
	secure := strings.Replace(w.web, "http://", "https://", 1)
	for name, c := range map[string]struct{ endpoint, asked, binding string }{
		"over http":  {w.web + "/a/b?key=secret#x", w.web + wellKnown, resolver.BoundByDomain},
		"over https": {secure + "/a/b", secure + wellKnown, resolver.BindingUnknown}, // the server speaks no TLS
		"inward":     {"https://127.0.0.2/mcp", "https://127.0.0.2" + wellKnown, resolver.Unbound},
		"metadata":   {"http://169.254.169.254/latest", "http://169.254.169.254" + wellKnown, resolver.Unbound},
		"a port":     {"https://127.0.0.3:22/mcp", "https://127.0.0.3:22" + wellKnown, resolver.Unbound},
		"IPv6":       {"https://[::1]:8443/mcp", "https://[::1]:8443" + wellKnown, resolver.Unbound},
	} {
		w.chain.set("7", data(document(`"services":[{"name":"MCP","endpoint":"`+c.endpoint+`"}]`)))
		got, err := w.Resolve(t.Context(), agent(7, 0))
		if err != nil || got.URL != c.endpoint || got.Binding != c.binding {
			t.Errorf("%s: %s %q, %v", name, got.URL, got.Binding, err)
		}
		if asked := w.domains.take(); !slices.Equal(asked, []string{c.asked}) {
			t.Errorf("%s: asked %q", name, asked)
		}
		for _, s := range got.Steps {
			heraldtest.Lacks(t, name, s.Source+s.Detail, "secret")
		}
		w.clock.Advance(time.Hour)
	}
	w.site.setList("https://10.0.0.1/agent-registration.json")
	w.chain.set("7", data(document(`"services":[{"name":"MCP","endpoint":"`+w.web+`"}]`)))
	if got := w.resolve(t, 7, 0, "ok"); got.Binding != resolver.Unbound || !strings.Contains(got.Steps[3].Detail, "blocked") {
		t.Errorf("led inward: %+v", got)
	}
	w.site.mu.Lock()
	defer w.site.mu.Unlock()
	heraldtest.Equal(t, "the server saw", w.site.listRequests, []string{"GET " + wellKnown, "GET " + wellKnown})
}

// TestBindingIsForgotten: the binding of an immutable document is cached as long as that of a mutable one. A failure of
// the domain is cached for a minute.
func TestBindingIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	w.chain.set("7", data(document(mcpAt)))
	binding := func(want string, asked int, when string) {
		t.Helper()
		got, err := w.Resolve(t.Context(), agent(7, 0))
		if err != nil || got.Binding != want {
			t.Errorf("%s: %q, %v", when, got.Binding, err)
		}
		heraldtest.Equal(t, fmt.Sprintf("%s: asked", when), len(w.domains.take()), asked)
	}
	w.domains.set("https://a.example", fails(&ipfs.UnavailableError{Err: errAway}))
	binding(resolver.BindingUnknown, 1, "away")
	w.domains.set("https://a.example", lists("{"+naming(8)+"}"))
	w.clock.Advance(59 * time.Second)
	binding(resolver.BindingUnknown, 0, "within the minute")
	w.clock.Advance(2 * time.Second)
	binding(resolver.Unbound, 1, "after the minute")
	w.domains.set("https://a.example", lists("{"+naming(7)+"}"))
	w.clock.Advance(4 * time.Minute)
	binding(resolver.Unbound, 0, "not named, 4 min")
	w.clock.Advance(2 * time.Minute)
	binding(resolver.BoundByDomain, 1, "named")
	w.clock.Advance(6 * time.Minute)
	binding(resolver.BoundByDomain, 1, "named, 6 min later")

	// Under require, "unbound" is cached as shortly as any other refusal, and a failure of the domain for a quarter of
	// that.
	w = newWorld(t, resolver.Config{Binding: "require"})
	w.chain.set("7", data(document(mcpAt)))
	for i, c := range []struct {
		domain domain
		want   string
	}{{fails(errAway), "unavailable"}, {lists("{}"), "unbound"}, {lists("{" + naming(7) + "}"), "unbound"}} {
		w.domains.set("https://a.example", c.domain)
		w.resolve(t, 7, 0, c.want)
		if i == 0 {
			w.clock.Advance(15 * time.Second)
		}
	}
	w.clock.Advance(61 * time.Second)
	w.resolve(t, 7, 0, "ok")
}

// TestCloseWhileAsking: closing the resolver during a request for a list records no result for the domain.
func TestCloseWhileAsking(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	w.chain.set("7", data(document(mcpAt)))
	begun := make(chan bool)
	w.domains.set("https://a.example", func(ctx context.Context) (ipfs.Document, error) {
		if until, ok := ctx.Deadline(); !ok || time.Until(until) > 5*time.Second {
			t.Errorf("the domain has until %s", until)
		}
		close(begun)
		<-ctx.Done()
		return ipfs.Document{}, ctx.Err()
	})
	done := make(chan error, 1)
	go func() {
		_, err := w.Resolve(context.Background(), agent(7, 0))
		done <- err
	}()
	<-begun
	w.Close()
	heraldtest.Fails(t, "the error", <-done, context.Canceled)
}

// TestRevalidation: a document that its server reports as unchanged is valid for another period, and is not transferred
// again.
func TestRevalidation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{MutableTTL: time.Minute, NegativeTTL: 10 * time.Second})
	uri := w.web + "/state.json"
	w.chain.set("7", uri)
	reads := 0
	resolve := func(when string, epoch int64, want string, read bool, full, same int) resolver.Target {
		t.Helper()
		got, err := w.Resolve(t.Context(), agent(7, epoch))
		switch {
		case err == nil && got.URL != want:
			t.Errorf("%s: %+v", when, got)
		case err != nil && nameError(err) != want:
			t.Errorf("%s: %v, want %s", when, err, want)
		}
		if read {
			reads++
		}
		heraldtest.Equal(t, fmt.Sprintf("%s: the chain was read", when), w.chain.count(), reads)
		if f, s := w.site.counts(); f != full || s != same {
			t.Errorf("%s: sent %d times and said to be the same %d times, want %d and %d", when, f, s, full, same)
		}
		return got
	}
	w.site.put(document(mcpAt), `"1"`)
	first := resolve("first", 0, "https://a.example/mcp", true, 1, 0)
	resolve("again", 0, "https://a.example/mcp", false, 1, 0)
	w.domains.set("https://a.example", lists("{"+naming(7)+"}"))
	w.clock.Advance(61 * time.Second)
	got := resolve("out of date", 0, "https://a.example/mcp", true, 1, 1)
	heraldtest.Equal(t, "binding", first.Binding, resolver.Unbound)
	heraldtest.Equal(t, "binding", got.Binding, resolver.BoundByDomain)
	if len(got.Steps) != 5 || !strings.Contains(got.Steps[1].Detail, "not changed") || got.Steps[4] != first.Steps[4] || got.Steps[2] != first.Steps[2] {
		t.Errorf("steps %+v, at first %+v", got.Steps, first.Steps)
	}
	w.clock.Advance(59 * time.Second)
	resolve("good for another while", 0, "https://a.example/mcp", false, 1, 1)
	w.clock.Advance(2 * time.Second)
	resolve("and another", 0, "https://a.example/mcp", true, 1, 2)

	// A document that changed is read.
	w.site.put(document(naming(7)+`,"services":[]`), `"2"`)
	w.clock.Advance(61 * time.Second)
	resolve("changed", 0, "no_mcp_endpoint", true, 2, 2)
	resolve("nothing to call", 0, "no_mcp_endpoint", false, 2, 2)
	w.clock.Advance(11 * time.Second)
	resolve("still nothing to call", 0, "no_mcp_endpoint", true, 2, 3)
	w.site.put("<!doctype html>", `"3"`)
	w.clock.Advance(11 * time.Second)
	resolve("a page", 0, "no_document", true, 3, 3)
	w.clock.Advance(11 * time.Second)
	resolve("still a page", 0, "no_document", true, 3, 4)

	// The binding is checked again, even if the document has not changed.
	w.site.put(document(naming(7)+","+mcpAt), `"4"`)
	w.clock.Advance(11 * time.Second)
	resolve("bound", 0, "https://a.example/mcp", true, 4, 4)
	w.domains.take()
	w.domains.set("https://a.example", lists("{"+naming(8)+"}"))
	w.clock.Advance(61 * time.Second)
	if got := resolve("unchanged, and not bound any more", 0, "https://a.example/mcp", true, 4, 5); got.Binding != resolver.Unbound {
		t.Errorf("binding %q", got.Binding)
	}
	heraldtest.Equal(t, "questions", len(w.domains.take()), 1)

	// After a raised epoch, and for another tokenURI, the request is unconditional.
	resolve("a raised epoch", 1, "https://a.example/mcp", true, 5, 5)
	w.chain.set("7", uri+"?v=2")
	w.clock.Advance(61 * time.Second)
	resolve("another tokenURI", 1, "https://a.example/mcp", true, 6, 5)
	w.clock.Advance(61 * time.Second)
	resolve("the other tokenURI again", 1, "https://a.example/mcp", true, 6, 6)
	// Without an ETag the request is unconditional.
	w.site.put(document(naming(7)+","+mcpAt), "")
	w.clock.Advance(61 * time.Second)
	resolve("the ETag is gone", 1, "https://a.example/mcp", true, 7, 6)
	w.clock.Advance(61 * time.Second)
	resolve("no ETag", 1, "https://a.example/mcp", true, 8, 6)
}

// TestStepsNameSkippedEntries: the steps name every entry that was used or skipped, even if no endpoint can be called.
func TestStepsNameSkippedEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	many := `"services":[{"name":"MCP","endpoint":"https://u:p@a.example/"},{"name":"web","endpoint":"https://w.example"},{"name":"MCP","endpoint":"https://b.example/{agentId}?key=secret"},` +
		`{"name":"MCP","endpoint":"https://c.example/mcp.json"},{"name":"MCP","endpoint":"ws://d.example"}]`
	none := `"endpoints":[{"name":"MCP","endpoint":"ws://a.example"},{"name":"MCP","endpoint":"ws://b.example"},{"name":"MCP","endpoint":"ws://c.example"},{"name":"MCP","endpoint":"ws://d.example"}]`
	file := w.gateway.AddFile([]byte(document(mcpAt)))
	for name, c := range map[string]struct {
		uri  string
		want []string // What: part of Detail
	}{
		"ipfs": {"ipfs://" + file.String(), []string{"tokenURI: ipfs://" + file.String(), "document: verified against the CID", "registration: ", "binding: ", "endpoint: https://a.example/mcp"}},
		"several": {data(document(many)), []string{"tokenURI: a data URI of", "document: labelled application/json, on chain", "registration: services, 5 entries, 4 MCP",
			"binding: not found", "endpoint: https://b.example/7; refused before it: services[0]: its address carries user information; 2 other MCP entries are ranked below it"}},
		"none that can be called": {data(document(none)), []string{"tokenURI: ", "document: ", "registration: endpoints, 4 entries, 4 MCP",
			"endpoint: refused: endpoints[0]: only http, https and listed commands are called; endpoints[1]: "}},
		"no MCP":      {document(`"services":[{"name":"A2A","endpoint":"https://a.example"}]`), []string{"tokenURI: the document itself", "document: on chain", "registration: services, 1 entry, 0 MCP", "endpoint: there is no MCP entry"}},
		"inactive":    {data(document(`"active":false`)), []string{"tokenURI: ", "document: ", "registration: no services, inactive"}},
		"no JSON":     {"data:,hello", []string{"tokenURI: ", "document: 5 bytes", "registration: the document is not JSON"}},
		"web":         {w.web + "/agent.json?key=secret", []string{"tokenURI: /agent.json", "document: not verified", "registration: services, 1 entry, 1 MCP", "binding: ", "endpoint: https://a.example/mcp"}},
		"not had":     {w.web + "/busy", []string{"tokenURI: /busy", "document: the server answered 503"}},
		"empty":       {" ", []string{"tokenURI: empty"}},
		"text":        {"my \x1b[31magent", []string{"tokenURI: my  [31magent", "document: no document"}},
		"a lot of it": {strings.Repeat("x", 10_000), []string{"tokenURI: xxx", "document: no document"}},
	} {
		w.chain.set("7", c.uri)
		got, _ := w.Resolve(t.Context(), agent(7, 0))
		w.clock.Advance(time.Hour)
		for i, want := range c.want {
			what, detail, _ := strings.Cut(want, ": ")
			if i >= len(got.Steps) || got.Steps[i].What != what || !strings.Contains(got.Steps[i].Detail, detail) {
				t.Errorf("%s, step %d, want %s:\n%+v", name, i, want, got.Steps)
				break
			}
		}
		heraldtest.Equal(t, name, len(got.Steps), len(c.want))
		for _, s := range got.Steps {
			if strings.Contains(s.Detail+s.Source, "secret") || strings.ContainsFunc(s.Detail, func(r rune) bool { return r < ' ' }) || len(s.Detail) > 1200 {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
}
