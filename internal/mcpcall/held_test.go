package mcpcall

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// heldAgents serves many agents, one per path, with the same tool list. lists counts the requests for it.
func heldAgents(t *testing.T, tools string) (url string, lists *atomic.Int64) {
	lists = &atomic.Int64{}
	return serve(t, &agent{on: onMethod("tools/list", func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		lists.Add(1)
		reply(w, id, tools)
	})}).URL, lists
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
				if _, err := Fit(set.Tools[0], map[string]any{"value": "1"}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range c.agents {
				use(i)
				use(0) // agent 0 is therefore never the least recently used
			}
			checkHeld(t, p, before)
			if n := lists.Load(); n != int64(c.agents) {
				t.Errorf("%d lists were asked for, want %d", n, c.agents)
			}
			use(1)
			if n := lists.Load(); n != int64(c.agents)+1 {
				t.Errorf("the agent that was used longest ago was not forgotten: %d lists", n)
			}
		})
	}
}

// TestLargeClientsInUse checks that the bytes of a client in use do not cause other clients to be dropped.
func TestLargeClientsInUse(t *testing.T) {
	t.Parallel()
	honest, lists := heldAgents(t, `{"tools":[{"name":"tool0","inputSchema":{"type":"object"}}]}`)
	called, answer := make(chan struct{}), make(chan struct{})
	large := serve(t, &agent{on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		switch method {
		case "tools/list":
			reply(w, id, `{"tools":[{"name":"tool0","inputSchema":{"title":"`+strings.Repeat("x", 100<<10)+`"}}]}`)
		case "tools/call":
			close(called)
			<-answer
			reply(w, id, `{"content":[]}`)
		default:
			return false
		}
		return true
	}}).URL
	p := newPool(t, func(c *Config) { c.MaxHeldBytes = 64 << 10; c.RelistAfter = time.Hour })
	list := func(url string) {
		t.Helper()
		if _, err := p.Tools(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: url}, false); err != nil {
			t.Error(err)
		}
	}
	list(honest)
	var done sync.WaitGroup
	done.Go(func() {
		_, _ = p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: large}, Request{Tool: "tool0"})
	})
	<-called
	list(large)
	list(honest)
	close(answer)
	done.Wait()
	heraldtest.Equal(t, "lists of the small one, whose client stays", lists.Load(), 1)
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
	list := `{"tools":[` + strings.Join(tools, ",") + `]}`
	called, answer := make(chan bool, 100), make(chan bool)
	url := serve(t, &agent{on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		switch method {
		case "tools/list":
			reply(w, id, list)
		case "tools/call":
			called <- true
			<-answer
			reply(w, id, `{"content":[]}`)
		default:
			return false
		}
		return true
	}}).URL
	p := newPool(t, holdingLittle)
	before := live()
	var done sync.WaitGroup
	for i := range 10 {
		ep := Endpoint{Transport: TransportHTTP, URL: fmt.Sprintf("%s/%d", url, i)}
		set := mustList(t, p, ep)
		for _, tool := range set.Tools {
			_, err := Fit(tool, map[string]any{"value": "1"})
			heraldtest.Must(t, err)
		}
		done.Go(func() {
			if _, err := p.Call(heraldtest.Within(t, 5*time.Minute), ep, Request{Tool: "tool0"}); err != nil {
				t.Error(err)
			}
		})
		<-called
	}
	if grown := live() - before; grown > p.cfg.MaxHeldBytes+24<<20 {
		t.Errorf("10 clients in use hold %d MiB", grown>>20)
	}
	close(answer)
	done.Wait()
	set := mustList(t, p, Endpoint{Transport: TransportHTTP, URL: url + "/9"})
	heraldtest.Equal(t, "tools listed anew", len(set.Tools), 4)
}

// TestPoolHoldsSoManyEvents checks the byte limit with event streams that begin an event and never end it.
func TestPoolHoldsSoManyEvents(t *testing.T) {
	const agents = 40
	begun := "data: " + strings.Repeat("x", 900<<10)
	a := &streamAgent{post: onPost("tools/list", func(s *openStream, w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		w.WriteHeader(http.StatusAccepted)
		s.result(id, `{"tools":[]}`)
		s.say("%s", begun)
	})}
	_, p, ep := dial(t, a, holdingLittle)
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
	var lists atomic.Int64
	a := modern(onMethod("tools/list", func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		n := lists.Add(1)
		var tools []string
		for i := range 12 {
			tools = append(tools, fmt.Sprintf(`{"name":"t%d-%d","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"enum":[%s{}]}}}}`,
				n, i, strings.Repeat(`{"a":{}},`, 500)))
		}
		reply(w, id, `{"resultType":"complete","tools":[`+strings.Join(tools, ",")+`]}`)
	}))
	url := serve(t, a).URL
	p := newPool(t, holdingLittle)
	before := live()
	for i := range agents * 3 {
		ep := Endpoint{Transport: TransportHTTP, URL: fmt.Sprintf("%s/%d", url, i/3), ProtocolHint: modernVersion}
		_, err := p.Tools(heraldtest.Within(t, 30*time.Second), ep, true)
		heraldtest.Must(t, err)
	}
	heraldtest.Equal(t, "lists", lists.Load(), agents*3)
	heraldtest.Await(t, "the lists to be gone", func() bool { return live()-before < 12<<20 })
}
