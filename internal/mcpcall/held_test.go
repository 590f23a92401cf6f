package mcpcall

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// heldAgents serves many agents, one per path, with the same tool list. lists counts the requests for it.
func heldAgents(t *testing.T, tools string) (url string, lists func() int) {
	a := &agent{tools: tools}
	return serve(t, a).URL, func() int { return a.seen("tools/list") }
}

// holdingLittle gives a pool a quarter of the default, so that few agents reach it.
func holdingLittle(c *Config) { c.MaxHeldBytes = 16 << 20 }

// live is the memory that is in use after a collection.
func live() int64 {
	runtime.GC()
	runtime.GC() // the first one only empties sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// checkHeld fails if the pool holds more bytes than its limit, by its own count or by the growth of the heap.
func checkHeld(t *testing.T, p *Pool, before int64) {
	t.Helper()
	var grown int64
	heraldtest.Await(t, "the clients that were dropped to be gone", func() bool {
		grown = live() - before
		return grown < p.cfg.MaxHeldBytes+12<<20
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	var sum int64
	for _, s := range p.slots {
		if s.conn != nil && s.conn.counted {
			sum += s.conn.held
		}
	}
	if p.held != sum || sum > p.cfg.MaxHeldBytes || sum < p.cfg.MaxHeldBytes/2 {
		t.Errorf("the pool counts %d MiB of %d, its %d clients hold %d; in memory it is %d", p.held>>20, p.cfg.MaxHeldBytes>>20, len(p.slots), sum>>20, grown>>20)
	}
}

// TestPoolHoldsSoManyBytes checks that the pool stays within its byte limit with many agents whose tool lists are large
// or whose schemas grow a hundredfold when compiled. The pool drops the least recently used clients. The test is not
// parallel, because it measures memory.
func TestPoolHoldsSoManyBytes(t *testing.T) {
	title := strings.Repeat("x", 120<<10)
	var tools []string
	for i := range 8 {
		tools = append(tools, fmt.Sprintf(`{"name":"tool%d","inputSchema":{"title":"%s"}}`, i, title))
	}
	for name, c := range map[string]struct {
		list   string
		agents int
	}{
		"lists":   {strings.Join(tools, ","), 28},
		"schemas": {`{"name":"tool0","inputSchema":{"anyOf":[{}` + strings.Repeat(",{}", 1900) + `]}}`, 14},
	} {
		t.Run(name, func(t *testing.T) {
			url, lists := heldAgents(t, `{"tools":[`+c.list+`]}`)
			p := newPool(t, holdingLittle)
			before := live()
			use := func(i int) {
				t.Helper()
				set := mustList(t, p, Endpoint{Transport: TransportHTTP, URL: fmt.Sprintf("%s/%d", url, i)})
				_, err := Fit(set.Tools[0], map[string]any{"value": "1"})
				heraldtest.Must(t, err)
			}
			for i := range c.agents {
				use(i)
				use(0) // agent 0 is therefore never the least recently used
			}
			checkHeld(t, p, before)
			heraldtest.Equal(t, "lists that were asked for", lists(), c.agents)
			use(1)
			heraldtest.Equal(t, "lists, with that of the agent that was used longest ago", lists(), c.agents+1)
		})
	}
}

// TestLargeClientsInUse checks that the bytes of a client in use do not cause other clients to be dropped.
func TestLargeClientsInUse(t *testing.T) {
	t.Parallel()
	honest, lists := heldAgents(t, `{"tools":[{"name":"tool0","inputSchema":{"type":"object"}}]}`)
	called, answer := make(chan struct{}), make(chan struct{})
	ctx, p, large := dial(t, &agent{
		tools: `{"tools":[{"name":"tool0","inputSchema":{"title":"` + strings.Repeat("x", 100<<10) + `"}}]}`,
		on: answers{"tools/call": func(q *request) {
			close(called)
			<-answer
			q.pass()
		}}}, func(c *Config) { c.MaxHeldBytes = 64 << 10; c.RelistAfter = time.Hour })
	small := Endpoint{Transport: TransportHTTP, URL: honest}
	mustList(t, p, small)
	done := startCall(ctx, p, large)
	<-called
	mustList(t, p, large)
	mustList(t, p, small)
	close(answer)
	heraldtest.Must(t, <-done)
	heraldtest.Equal(t, "lists of the small one, whose client stays", lists(), 1)
	heraldtest.Await(t, "the large client to be dropped when nobody uses it", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.slots) == 1 && p.held < p.cfg.MaxHeldBytes
	})
}

// TestClientsInUseHoldSoManyBytes checks that the byte limit for large schemas also holds for agents with calls in
// flight that never end. The test is not parallel, because it measures memory.
func TestClientsInUseHoldSoManyBytes(t *testing.T) {
	var tools []string
	for i := range 4 {
		tools = append(tools, fmt.Sprintf(`{"name":"tool%d","inputSchema":{"anyOf":[{}%s],"title":"%s"}}`, i, strings.Repeat(`,{}`, 1900), strings.Repeat("x", 100<<10)))
	}
	called, answer := make(chan bool, 100), make(chan bool)
	url := serve(t, &agent{tools: `{"tools":[` + strings.Join(tools, ",") + `]}`, on: answers{"tools/call": func(q *request) {
		called <- true
		<-answer
		q.pass()
	}}}).URL
	p := newPool(t, holdingLittle)
	before := live()
	var done []<-chan error
	for i := range 10 {
		ep := Endpoint{Transport: TransportHTTP, URL: fmt.Sprintf("%s/%d", url, i)}
		for _, tool := range mustList(t, p, ep).Tools {
			_, err := Fit(tool, map[string]any{"value": "1"})
			heraldtest.Must(t, err)
		}
		done = append(done, startCall(heraldtest.Within(t, 5*time.Minute), p, ep))
		<-called
	}
	if grown := live() - before; grown > p.cfg.MaxHeldBytes+24<<20 {
		t.Errorf("10 clients in use hold %d MiB", grown>>20)
	}
	close(answer)
	for _, call := range done {
		heraldtest.Must(t, <-call)
	}
	set := mustList(t, p, Endpoint{Transport: TransportHTTP, URL: url + "/9"})
	heraldtest.Equal(t, "tools listed anew", len(set.Tools), 4)
}

// TestPoolHoldsSoManyEvents checks the byte limit with event streams that begin an event and never end it.
func TestPoolHoldsSoManyEvents(t *testing.T) {
	const agents = 40
	begun := "data: " + strings.Repeat("x", 900<<10)
	_, p, ep := dial(t, &streamAgent{on: answers{"tools/list": func(q *request) {
		q.result(`{"tools":[]}`)
		q.stream.say("%s", begun)
	}}}, holdingLittle)
	before := live()
	for i := range agents {
		ep := ep
		ep.URL += fmt.Sprintf("?agent=%d", i)
		mustList(t, p, ep)
	}
	// The streams are read in the background.
	heraldtest.Await(t, "the streams to be read", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.held > p.cfg.MaxHeldBytes*3/4
	})
	checkHeld(t, p, before)
}

// TestMarkedToolsAreKeptOnce checks that mcp-go does not also keep, decoded to many times their size, the tools whose
// arguments are mirrored into headers. The agent renames its tools in every list.
func TestMarkedToolsAreKeptOnce(t *testing.T) {
	const agents = 24
	var a *agent
	a = modern(answers{"tools/list": func(q *request) {
		var tools []string
		for i := range 12 {
			tools = append(tools, fmt.Sprintf(`{"name":"t%d-%d","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"enum":[%s{}]}}}}`,
				a.seen(q.method), i, strings.Repeat(`{"a":{}},`, 500)))
		}
		q.result(`{"resultType":"complete","tools":[` + strings.Join(tools, ",") + `]}`)
	}})
	url := serve(t, a).URL
	p := newPool(t, holdingLittle)
	before := live()
	for i := range agents * 3 {
		ep := Endpoint{Transport: TransportHTTP, URL: fmt.Sprintf("%s/%d", url, i/3), ProtocolHint: modernVersion}
		_, err := p.Tools(heraldtest.Within(t, 30*time.Second), ep, true)
		heraldtest.Must(t, err)
	}
	heraldtest.Equal(t, "lists", a.seen("tools/list"), agents*3)
	heraldtest.Await(t, "the lists to be gone", func() bool { return live()-before < 12<<20 })
}
