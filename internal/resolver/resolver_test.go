package resolver_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

var registry = common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432")

// registryReader is a chain client whose registry is a map.
type registryReader struct {
	mu    sync.Mutex
	uris  map[string]string
	err   error
	hold  chan struct{} // if set, TokenURI waits for it
	reads int
}

type noSuchAgent struct{ error }

func (noSuchAgent) NoSuchAgent() bool { return true }

var errAway = errors.New("the node is away")

func (r *registryReader) TokenURI(ctx context.Context, _ uint64, _ common.Address, id *big.Int) (string, error) {
	r.mu.Lock()
	r.reads++
	uri, ok := r.uris[id.String()]
	err, hold := r.err, r.hold
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	if err != nil {
		return "", err
	}
	if !ok {
		return "", fmt.Errorf("calling tokenURI: %w", noSuchAgent{errors.New("no such token")})
	}
	return uri, nil
}

func (r *registryReader) set(id, uri string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.uris[id] = uri
}

func (r *registryReader) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads
}

// world is a resolver with a real fetcher, a real gateway and a web server.
type world struct {
	*resolver.Resolver
	chain   *registryReader
	gateway *ipfstest.Gateway
	domains *domains
	site    *site
	web     string
	clock   *heraldtest.Clock
}

func agent(id int64, epoch int64) resolver.Agent {
	return resolver.Agent{ChainID: 8453, Registry: registry, ID: big.NewInt(id), Epoch: epoch}
}

func newWorld(t *testing.T, cfg resolver.Config) *world {
	t.Helper()
	w := &world{chain: &registryReader{uris: map[string]string{}}, gateway: ipfstest.New(), clock: heraldtest.NewClock(time.Unix(1_800_000_000, 0))}
	gw := httptest.NewServer(w.gateway.Handler())
	t.Cleanup(gw.Close)
	w.site = &site{}
	web := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/state.json", wellKnown:
			w.site.serve(rw, r)
		case "/agent.json":
			_, _ = io.WriteString(rw, document(`"services":[{"name":"MCP","endpoint":"https://a.example/mcp"}]`))
		case "/page":
			_, _ = io.WriteString(rw, "<!doctype html><title>Hello</title>")
		case "/busy":
			rw.WriteHeader(http.StatusServiceUnavailable)
		default:
			http.NotFound(rw, r)
		}
	}))
	t.Cleanup(web.Close)
	w.web = web.URL
	guard, err := netguard.New(netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	heraldtest.Must(t, err)
	f, err := ipfs.New(ipfs.Config{Gateways: []string{gw.URL}, Guard: guard})
	heraldtest.Must(t, err)
	t.Cleanup(f.Close)
	w.domains = &domains{Fetcher: f, answers: map[string]domain{}}
	cfg.Chain, cfg.Fetcher, cfg.Now = w.chain, w.domains, w.clock.Now
	w.Resolver, err = resolver.New(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(w.Close)
	return w
}

// resolve resolves an agent and checks the name of the error.
func (w *world) resolve(t *testing.T, id, epoch int64, want string) resolver.Target {
	t.Helper()
	got, err := w.Resolve(t.Context(), agent(id, epoch))
	if nameError(err) != want {
		t.Errorf("agent %d: %s (%v), want %s", id, nameError(err), err, want)
	}
	return got
}

// document returns a registration with the given members.
func document(members string) string {
	return `{"type":"https://eips.ethereum.org/EIPS/eip-8004#registration-v1","name":"a",` + members + `}`
}

func data(doc string) string {
	return "data:application/json;base64," + base64.StdEncoding.EncodeToString([]byte(doc))
}

// nameError returns a short name of an error, for tables.
func nameError(err error) string {
	var skip *resolver.SkipError
	var failed *outcome.Failure
	var unbound *resolver.UnboundError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &skip):
		return string(skip.Reason)
	case errors.As(err, &failed):
		return string(failed.Reason)
	case errors.As(err, new(*resolver.TransportRefusedError)):
		return "transport_refused"
	case errors.As(err, &unbound):
		return "unbound"
	case errors.As(err, new(*netguard.BlockedError)), errors.As(err, new(*netguard.RefusedURLError)):
		return "address_blocked"
	case errors.As(err, new(*ipfs.UnavailableError)):
		return "unavailable"
	case errors.As(err, new(*ipfs.NotFoundError)):
		return "not found"
	}
	return err.Error()
}

// TestTiedCommand: a newly minted agent cannot use the command that is tied to another agent.
func TestTiedCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{StdioCommands: [][]string{{"agent"}},
		MayRun: func(chainID uint64, registry common.Address, id string, argv []string) bool {
			a := agent(7, 0)
			return chainID == a.ChainID && registry == a.Registry && id == "7" && slices.Equal(argv, []string{"agent"})
		}})
	for id, want := range map[int64]string{7: "ok agent", 8: "transport_refused "} {
		w.chain.set(fmt.Sprint(id), data(document(`"capabilities":{"mcp":{"command":"agent"}}`)))
		got, err := w.Resolve(t.Context(), agent(id, 0))
		if is := nameError(err) + " " + got.Command; is != want {
			t.Errorf("%d: %s, %v", id, is, err)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{StdioCommands: [][]string{{"agent", "--stdio"}}})
	mcp := `"services":[{"name":"web","endpoint":"https://a.example"},{"name":"mcp","endpoint":"HTTPS://a.example/{agentId}/mcp ","version":"2025-06-18"}]`
	dir := w.gateway.AddDirectory(map[string][]byte{"agent.json": []byte(document(mcp))})
	file := w.gateway.AddFile([]byte(document(mcp)))
	lost := ipfstest.New().AddFile([]byte("elsewhere"))
	bound := naming(7) + "," + mcp
	const seven = "https://a.example/7/mcp"
	for name, c := range map[string]struct {
		uri    string
		want   string // reason
		target string // transport, and URL or command
		source string
		bound  bool
	}{
		"ipfs":               {"ipfs://" + file.String(), "ok", "http " + seven, "cid", false},
		"ipfs directory":     {"ipfs://" + dir.String() + "/agent.json", "ok", "http " + seven, "cid", false},
		"data":               {data(document(mcp)), "ok", "http " + seven, "data", false},
		"inline":             {document(mcp), "ok", "http " + seven, "data", false},
		"http":               {w.web + "/agent.json?key=secret", "ok", "http https://a.example/mcp", "http", false},
		"names itself":       {data(document(bound)), "ok", "http " + seven, "data", false},
		"endpoints":          {data(document(`"endpoints":[{"type":"MCP","url":"https://b.example"}]`)), "ok", "http https://b.example", "data", false},
		"old shape":          {data(document(`"capabilities":{"mcp":{"transport":"http","url":"https://c.example"}}`)), "ok", "http https://c.example", "data", false},
		"second usable":      {data(document(`"services":[{"name":"MCP","endpoint":"wss://a.example"},{"name":"MCP","endpoint":"https://d.example"}]`)), "ok", "http https://d.example", "data", false},
		"listed command":     {data(document(`"capabilities":{"mcp":{"transport":"stdio","command":"agent","args":["--stdio"]}}`)), "ok", "stdio agent", "data", false},
		"sse before command": {data(document(`"services":[{"name":"MCP","transport":"sse","endpoint":"https://a.example"}],"capabilities":{"mcp":{"command":"agent","args":["--stdio"]}}`)), "ok", "sse https://a.example", "data", false},
		"sse by its path":    {data(document(`"services":[{"name":"MCP","endpoint":"https://a.example/sse"}]`)), "ok", "sse https://a.example/sse", "data", false},
		"HTTP+SSE":           {data(document(`"services":[{"name":"MCP","transport":"HTTP+SSE","endpoint":"https://a.example/mcp"}]`)), "ok", "sse https://a.example/mcp", "data", false},
		"http, said to be":   {data(document(`"services":[{"name":"MCP","transport":"http","endpoint":"https://a.example/sse"}]`)), "ok", "http https://a.example/sse", "data", false},
		"http before sse":    {data(document(`"services":[{"name":"MCP","endpoint":"https://a.example/sse"},{"name":"MCP","endpoint":"https://a.example/mcp"}]`)), "ok", "http https://a.example/mcp", "data", false},
		"user at sse":        {data(document(`"services":[{"name":"MCP","endpoint":"https://u:p@a.example/sse"}]`)), "transport_refused", "", "", false},
		"other command":      {data(document(`"capabilities":{"mcp":{"transport":"stdio","command":"sh","args":["-c","id"]}}`)), "transport_refused", "", "", false},
		"one more argument":  {data(document(`"capabilities":{"mcp":{"command":"agent","args":["--stdio","-v"]}}`)), "transport_refused", "", "", false},
		"ws":                 {data(document(`"services":[{"name":"MCP","endpoint":"ws://a.example"}]`)), "transport_refused", "", "", false},
		"ws, said to be sse": {data(document(`"services":[{"name":"MCP","transport":"sse","endpoint":"ws://a.example/sse"}]`)), "transport_refused", "", "", false},
		"no scheme":          {data(document(`"services":[{"name":"MCP","endpoint":"a.example/mcp"}]`)), "transport_refused", "", "", false},
		"user information":   {data(document(`"services":[{"name":"MCP","endpoint":"https://u:p@a.example/mcp"}]`)), "transport_refused", "", "", false},
		"inactive":           {data(document(`"active":false,` + mcp)), "agent_inactive", "", "", false},
		"no entry":           {data(document(`"services":[{"name":"A2A","endpoint":"https://a.example"}]`)), "no_mcp_endpoint", "", "", false},
		"empty object":       {"{}", "no_mcp_endpoint", "", "", false},
		"empty":              {"", "no_uri", "", "", false},
		"blank":              {" \n\x00", "no_uri", "", "", false},
		"text":               {"my agent", "no_document", "", "", false},
		"address":            {registry.Hex(), "no_document", "", "", false},
		"broken base64":      {"data:;base64,!", "no_document", "", "", false},
		"no JSON":            {"data:,hello", "no_document", "", "", false},
		"array":              {"data:,[]", "no_document", "", "", false},
		"HTML":               {w.web + "/page", "no_document", "", "", false},
		"too large":          {"data:,{" + strings.Repeat(" ", 2<<20) + "}", "no_document", "", "", false},
		"directory":          {"ipfs://" + dir.String(), "no_document", "", "", false},
		"no such file":       {"ipfs://" + dir.String() + "/x", "no_document", "", "", false},
		"lost":               {"ipfs://" + lost.String(), "not found", "", "", false},
		"404":                {w.web + "/missing", "not found", "", "", false},
		"busy":               {w.web + "/busy", "unavailable", "", "", false},
		"inward":             {"https://127.0.0.2/agent.json", "address_blocked", "", "", false},
		"plain http outside": {"http://1.1.1.1/agent.json", "address_blocked", "", "", false},
	} {
		w.chain.set("7", c.uri)
		for turn := range 2 { // the second one from the cache, if allowed
			got, err := w.Resolve(t.Context(), agent(7, 0))
			if nameError(err) != c.want {
				t.Errorf("%s, turn %d: %s (%v), want %s", name, turn, nameError(err), err, c.want)
			}
			if strings.Contains(got.DocumentURI, "secret") || err != nil && len(err.Error()) > 800 {
				t.Errorf("%s: %q, %v", name, got.DocumentURI, err)
			}
			if len(got.Steps) == 0 {
				t.Errorf("%s, turn %d: no steps", name, turn)
			}
			if err == nil && (got.Transport+" "+got.URL+got.Command != c.target || got.DocumentSource != c.source || got.Bound() != c.bound) {
				t.Errorf("%s: %+v", name, got)
			}
		}
		w.clock.Advance(24 * time.Hour)
	}
	w.resolve(t, 8, 0, "agent_not_found")
	if _, err := w.Resolve(t.Context(), resolver.Agent{}); err == nil {
		t.Error("an agent without id was resolved")
	}
}

func TestResolutionSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	doc := document(`"services":[{"name":"MCP","endpoint":"https://a.example","version":"1.0.0"}],
		"capabilities":{"mcp":{"url":"https://b.example","authentication":{"type":"bearer","tokenHeader":"X-Key"}}}`)
	w.chain.set("7", data(doc))
	got := w.resolve(t, 7, 0, "ok")
	const asked = "https://a.example" + wellKnown
	want := resolver.Target{Transport: "http", URL: "https://a.example", Name: "a", DocumentURI: "data:", DocumentSource: "data", From: "services[0]",
		Binding: resolver.Unbound,
		Steps: []resolver.Step{
			{What: "tokenURI", Source: "chain 8453", Detail: fmt.Sprintf("a data URI of %d bytes", len(data(doc)))},
			{What: "document", Source: "data", Detail: fmt.Sprintf("%d bytes labelled application/json, on chain", len(doc))},
			{What: "registration", Source: "document", Detail: "services and capabilities.mcp, 2 entries, 2 MCP"},
			{What: "binding", Source: asked, Detail: asked + " was not found on any of [a.example]"},
			{What: "endpoint", Source: "services[0]", Detail: "https://a.example; 1 other MCP entry is ranked below it"}}}
	heraldtest.Equal(t, "what was resolved", got, want)
	w.clock.Advance(12 * time.Second)
	got = w.resolve(t, 7, 0, "ok")
	heraldtest.Equal(t, "the steps from the cache", got.Steps,
		[]resolver.Step{{What: "cache", Source: "resolved 12s ago", Detail: "services[0] of a document by data, binding: none"}})
}

func TestCache(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{MutableTTL: time.Minute, PinnedTTL: time.Hour, NegativeTTL: time.Second, CacheEntries: 2,
		Binding: resolver.BindingOff}) // a binding expires sooner
	to := func(endpoint string) string {
		return data(document(naming(1) + `,"services":[{"name":"MCP","endpoint":"https://` + endpoint + `"}]`))
	}
	resolve := func(id, epoch int64) resolver.Target {
		t.Helper()
		return w.resolve(t, id, epoch, "ok")
	}
	reads := func(want int, what string) {
		t.Helper()
		heraldtest.Equal(t, fmt.Sprintf("%s: the chain was read", what), w.chain.count(), want)
	}
	w.chain.set("1", to("a.example"))
	resolve(1, 0)
	resolve(1, 0)
	reads(1, "twice the same")

	w.chain.set("1", to("b.example"))
	heraldtest.Equal(t, "after a raised epoch", resolve(1, 1).URL, "https://b.example")
	heraldtest.Equal(t, "a claim with an older epoch", resolve(1, 0).URL, "https://b.example")
	reads(2, "raised epoch")
	w.clock.Advance(time.Minute)
	resolve(1, 1)
	reads(3, "a minute after it was raised")
	w.clock.Advance(59 * time.Minute)
	resolve(1, 1)
	reads(3, "pinned document, 59 min")
	w.clock.Advance(2 * time.Minute)
	resolve(1, 1)
	reads(4, "pinned document, 61 min")

	w.chain.set("2", w.web+"/agent.json")
	resolve(2, 0)
	w.clock.Advance(61 * time.Second)
	resolve(2, 0)
	reads(6, "mutable document")

	// "No such agent" is cached too, for a shorter time.
	for range 3 {
		w.resolve(t, 3, 0, "agent_not_found")
	}
	reads(7, "negative")
	w.clock.Advance(2 * time.Second)
	_, _ = w.Resolve(t.Context(), agent(3, 0))
	reads(8, "negative, later")
	// The cache has room for two agents, so the least recently used one was evicted.
	resolve(2, 0)
	reads(8, "still there")
	resolve(1, 1)
	reads(9, "dropped")

	// A failure of the chain is not cached.
	w.chain.mu.Lock()
	w.chain.err = errAway
	w.chain.mu.Unlock()
	for range 2 {
		_, err := w.Resolve(t.Context(), agent(9, 0))
		heraldtest.Fails(t, "the error", err, errAway)
	}
	reads(11, "chain away")
}

// TestCacheBytes: strangers choose the size of their documents, and the worker keeps only a bounded part of them in
// memory.
func TestCacheBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{Binding: resolver.BindingOff})
	long := strings.Repeat("x", 8000)
	w.chain.set("1", data(document(`"services":[{"name":"MCP","endpoint":"https://a.example/`+long+`","command":"x","args":["`+long+`"],`+
		`"authentication":{"tokenHeader":"`+long+`"}}]`)))
	const agents = 2500 // with 16 kB each
	for id := range int64(agents) {
		w.chain.set(fmt.Sprint(id), w.chain.uris["1"])
		target := w.resolve(t, id, 0, "ok")
		heraldtest.Equal(t, "command and arguments of a URL", target.Command+strings.Join(target.Args, " "), "")
	}
	heraldtest.Equal(t, "the chain was read", w.chain.count(), agents)
	const replaced = 1000 // results of new epochs, which evict no others
	for id := range int64(replaced) {
		w.resolve(t, agents-1-id, 1, "ok")
	}
	w.resolve(t, agents-1, 0, "ok")
	w.resolve(t, agents-replaced-500, 0, "ok")
	heraldtest.Equal(t, "reads for agents that are still cached", w.chain.count(), agents+replaced)
	w.resolve(t, 0, 0, "ok")
	heraldtest.Equal(t, "reads for the first agent, which was evicted", w.chain.count(), agents+replaced+1)
}

// TestNodeBehindEpoch: the node that answers after an epoch was raised may lack the block for which it was raised. The
// agent's former endpoint is not cached for long then.
func TestNodeBehindEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{Binding: resolver.BindingOff})
	at := func(endpoint string) string {
		return data(document(`"services":[{"name":"MCP","endpoint":"https://` + endpoint + `"}]`))
	}
	w.chain.set("1", at("former.example"))
	w.resolve(t, 1, 0, "ok")
	for _, id := range []int64{1, 2} { // the cache has an older result of the first agent, and none of the second
		w.chain.set(fmt.Sprint(id), at("former.example"))
		w.resolve(t, id, 1, "ok")
		w.chain.set(fmt.Sprint(id), at("new.example"))
	}
	w.clock.Advance(time.Minute)
	for _, id := range []int64{1, 2} {
		heraldtest.Equal(t, "a minute later", w.resolve(t, id, 1, "ok").URL, "https://new.example")
	}
	read := w.chain.count()
	w.clock.Advance(59 * time.Minute)
	w.resolve(t, 1, 1, "ok")
	heraldtest.Equal(t, "reads in the hour after", w.chain.count(), read)
}

// TestPageInsteadOfDocument: no gateway has the document's CID at the moment, and the gateway in the tokenURI answers
// with a page. That does not show that the agent has no document.
func TestPageInsteadOfDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	doc := []byte(document(mcpAt))
	c := ipfstest.New().AddFile(doc)
	page := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "<html>too many requests</html>")
	}))
	t.Cleanup(page.Close)
	w.chain.set("7", page.URL+"/ipfs/"+c.String())
	w.resolve(t, 7, 0, "unavailable")
	w.gateway.AddFile(doc)
	if got := w.resolve(t, 7, 0, "ok"); got.DocumentSource != ipfs.SourceCID {
		t.Errorf("when a gateway has it: %+v", got)
	}
}

// TestDocumentNotInTime: the time of a resolution ends while the document is fetched.
func TestDocumentNotInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{Timeout: 300 * time.Millisecond})
	end := make(chan bool)
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	t.Cleanup(silent.Close)
	defer close(end)
	w.chain.set("7", silent.URL+"/agent.json")
	w.resolve(t, 7, 0, "unavailable")
}

func TestSharedFlight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	w.chain.set("1", data(document(`"services":[{"name":"MCP","endpoint":"https://a.example"}]`)))
	hold := make(chan struct{})
	w.chain.hold = hold
	first, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() {
		_, err := w.Resolve(first, agent(1, 0))
		gone <- err
	})
	heraldtest.Await(t, "the chain is asked", func() bool { return w.chain.count() == 1 })
	results := make(chan error, 8)
	for range cap(results) {
		all.Go(func() {
			_, err := w.Resolve(t.Context(), agent(1, 0))
			results <- err
		})
	}
	leave()
	heraldtest.Fails(t, "the first caller", <-gone, context.Canceled)
	close(hold)
	all.Wait()
	for range cap(results) {
		heraldtest.Must(t, <-results)
	}
	heraldtest.Equal(t, "reads of the chain", w.chain.count(), 1)
}

func TestClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t, resolver.Config{})
	w.chain.hold = make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := w.Resolve(context.Background(), agent(1, 0))
		done <- err
	}()
	heraldtest.Await(t, "the chain is asked", func() bool { return w.chain.count() == 1 })
	w.Close()
	heraldtest.Fails(t, "a running resolve", <-done, context.Canceled)
	_, err := w.Resolve(context.Background(), agent(2, 0))
	heraldtest.Fails(t, "after Close", err, resolver.ErrClosed)
}

func TestRefusedConfig(t *testing.T) {
	t.Parallel()
	ok := resolver.Config{Chain: &registryReader{}, Fetcher: &ipfs.Fetcher{}}
	for name, change := range map[string]func(*resolver.Config){
		"no chain":   func(c *resolver.Config) { c.Chain = nil },
		"no fetcher": func(c *resolver.Config) { c.Fetcher = nil },
	} {
		cfg := ok
		change(&cfg)
		if _, err := resolver.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
