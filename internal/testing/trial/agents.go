package trial

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Agents are MCP servers (streamable HTTP, 2025-11-25, JSON answers) in this process. Each has its own address, and
// so its own origin, or all share one. They record every tools/call by its delivery.
type Agents struct {
	servers []*agentServer

	began      atomic.Int64 // number of calls; a batch call counts once per delivery
	batchCalls atomic.Int64
	inFlight   atomic.Int64

	offersAll atomic.Bool
	listed    atomic.Bool // a servers file lists them

	mu        sync.Mutex
	calls     []*Call
	delivered map[uuid.UUID][]*Call
	strange   []string // calls that could not be parsed, which is always an error
}

type agentServer struct {
	all       *Agents
	number    int
	address   string
	path      string
	handler   http.Handler
	behaviour atomic.Pointer[Behaviour]
	batches   atomic.Bool // it offers the tool that accepts several deliveries

	mu      sync.Mutex
	server  *http.Server // nil while down
	serving sync.WaitGroup
}

// StartAgents starts n agents that answer at once.
func StartAgents(n int) (*Agents, error) {
	a := &Agents{delivered: map[uuid.UUID][]*Call{}}
	// A random network of 127/8, so that no other listener of this machine can answer for an agent that is down.
	network := 1 + rand.IntN(250)
	for i := range n {
		s := a.add(fmt.Sprintf("127.%d.%d.%d:0", network, i/250, 1+i%250), "/")
		s.handler = http.HandlerFunc(s.serve)
		if err := s.up(); err != nil {
			a.Close()
			return nil, err
		}
	}
	return a, nil
}

// StartNeighbours starts n agents that answer at once. They share one address and have different paths. Down and Up
// of the first agent affect all of them.
func StartNeighbours(n int) (*Agents, error) {
	a := &Agents{delivered: map[uuid.UUID][]*Call{}}
	paths := http.NewServeMux()
	for i := range n {
		path := fmt.Sprintf("/agents/%d/mcp", i)
		paths.HandleFunc(path, a.add("127.0.0.1:0", path).serve)
	}
	first := a.servers[0]
	first.handler = paths
	err := first.up()
	for _, s := range a.servers {
		s.address = first.address
	}
	return a, err
}

func (a *Agents) add(address, path string) *agentServer {
	s := &agentServer{all: a, number: len(a.servers), address: address, path: path}
	s.behave(Taking(0))
	a.servers = append(a.servers, s)
	return s
}

// Close stops all agents and drops calls in flight.
func (a *Agents) Close() {
	for _, s := range a.servers {
		s.down()
	}
}

// Len returns the number of agents.
func (a *Agents) Len() int { return len(a.servers) }

// URL returns the URL of agent i.
func (a *Agents) URL(i int) string { return "http://" + a.servers[i].address + a.servers[i].path }

// Behave sets the behaviour of agent i.
func (a *Agents) Behave(i int, b Behaviour) { a.servers[i].behave(b) }

// BehaveAll sets the behaviour of all agents.
func (a *Agents) BehaveAll(b Behaviour) {
	for _, s := range a.servers {
		s.behave(b)
	}
}

// OfferAll makes every agent offer the tools for all kinds of jobs, instead of only agent.receiveFeedback.
func (a *Agents) OfferAll() { a.offersAll.Store(true) }

// OfferBatches makes agent i also offer the tool that accepts several deliveries in one call. Each delivery is
// recorded as a call of its own. The behaviour for the first one applies to the whole call.
func (a *Agents) OfferBatches(i int) { a.servers[i].batches.Store(true) }

// Down stops agent i: it drops its connections and refuses new ones.
func (a *Agents) Down(i int) { a.servers[i].down() }

// Up starts agent i again at its address.
func (a *Agents) Up(i int) error { return a.servers[i].up() }

// Line returns a job about agent i as JSON with a newline, as the enqueue program reads it. Each serial has another
// client, so that no two deliveries are ordered. The same arguments yield the same event.
func (a *Agents) Line(i, serial int) string {
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
		`"action":%s}`+"\n", i+1, serial+1, a.action(i))
}

// action returns the action of agent i's jobs. It contains the agent's URL unless a servers file lists the agents.
func (a *Agents) action(i int) string {
	if a.listed.Load() {
		return `{"includeFileContent":false}`
	}
	return fmt.Sprintf(`{"resolveEndpoint":false,"includeFileContent":false,"endpoint":{"transport":"http","url":"%s"}}`, a.URL(i))
}

// writeServersFile writes a servers file with the URL of each agent. From then on, jobs do not contain the URLs.
func (a *Agents) writeServersFile(path string) error {
	entries := map[string]any{}
	for i := range a.servers {
		entries[fmt.Sprintf("8453:%d", i+1)] = map[string]string{"transport": "http", "url": a.URL(i)}
	}
	file, err := json.Marshal(map[string]any{"servers": entries})
	if err != nil {
		return err
	}
	a.listed.Store(true)
	return os.WriteFile(path, file, 0o600)
}

// InFlight returns the number of calls that the agents are handling.
func (a *Agents) InFlight() int { return int(a.inFlight.Load()) }

// Count returns the number of calls so far.
func (a *Agents) Count() int { return int(a.began.Load()) }

// BatchCalls returns the number of batch calls that have begun.
func (a *Agents) BatchCalls() int { return int(a.batchCalls.Load()) }

// Calls returns a copy of the recorded calls, in the order of their arrival. It returns an error if calls came that
// name no delivery.
func (a *Agents) Calls() (Calls, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(Calls, len(a.calls))
	for i, c := range a.calls {
		out[i] = *c
	}
	if len(a.strange) > 0 {
		return out, fmt.Errorf("%d calls cannot be understood, the first: %s", len(a.strange), a.strange[0])
	}
	return out, nil
}

func (a *Agents) begin(agent int, id uuid.UUID, attempt int) (c *Call, as Call) {
	a.began.Add(1)
	a.inFlight.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	c = &Call{Agent: agent, Delivery: id, Attempt: attempt, Number: len(a.delivered[id]) + 1, Begun: time.Now()}
	a.calls = append(a.calls, c)
	a.delivered[id] = append(a.delivered[id], c)
	return c, *c
}

func (a *Agents) end(c *Call, answered bool) {
	a.inFlight.Add(-1)
	a.mu.Lock()
	defer a.mu.Unlock()
	c.Ended, c.Answered = time.Now(), answered
}

func (a *Agents) cannotRead(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.strange = append(a.strange, what)
}

func (s *agentServer) behave(b Behaviour) { s.behaviour.Store(&b) }

func (s *agentServer) up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return nil
	}
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp4", s.address)
	if err != nil {
		return fmt.Errorf("agent %d: %w", s.number, err)
	}
	s.address = ln.Addr().String()
	server := &http.Server{Handler: s.handler, ReadHeaderTimeout: 10 * time.Second}
	s.server = server
	s.serving.Go(func() { _ = server.Serve(ln) })
	return nil
}

func (s *agentServer) down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		_ = s.server.Close()
		s.server = nil
	}
	s.serving.Wait()
}

// maxRequest bounds the requests that an agent reads.
const maxRequest = 8 << 20

type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Arguments struct {
			argument
			Deliveries []argument `json:"deliveries"`
		} `json:"arguments"`
		Meta struct {
			Delivery json.RawMessage `json:"io.agentherald/delivery"` // of one delivery, or a list
		} `json:"_meta"`
	} `json:"params"`
}

// argument contains the field of a delivery's arguments that is used here.
type argument struct {
	DeliveryID string `json:"deliveryId"`
}

// described is the description of a delivery in _meta.
type described struct {
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
}

// The lists of tools that an agent offers: only agent.receiveFeedback, also its batch tool, or the tools of all
// kinds.
const (
	oneTool    = `{"tools":[{"name":"agent.receiveFeedback","inputSchema":{"type":"object"}}]}`
	batchTools = `{"tools":[{"name":"agent.receiveFeedback","inputSchema":{"type":"object"}},` +
		`{"name":"agent.receiveFeedbackBatch","inputSchema":{"type":"object"}}]}`
	allTools = `{"tools":[{"name":"agent.receiveFeedback","inputSchema":{"type":"object"}},` +
		`{"name":"agent.receiveRevocation","inputSchema":{"type":"object"}},` +
		`{"name":"agent.receiveResponse","inputSchema":{"type":"object"}},` +
		`{"name":"agent.receiveValidation","inputSchema":{"type":"object"}}]}`
)

func (s *agentServer) serve(w http.ResponseWriter, r *http.Request) {
	serveMCP(w, r, "recording agent", func() string {
		switch {
		case s.all.offersAll.Load():
			return allTools
		case s.batches.Load():
			return batchTools
		}
		return oneTool
	}, func(req request) { s.call(w, r, req) })
}

// serveMCP handles a request to an MCP server. tools returns its list of tools, and call handles a call.
func serveMCP(w http.ResponseWriter, r *http.Request, name string, tools func() string, call func(request)) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var req request
	// Read to the end, because only then net/http detects that the caller left.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil {
		http.Error(w, "no JSON-RPC", http.StatusBadRequest)
		return
	}
	switch req.Method {
	case "initialize":
		reply(w, r, req.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"`+name+`","version":"1"}}`)
	case "tools/list":
		reply(w, r, req.ID, tools())
	case "tools/call":
		call(req)
	case "ping":
		reply(w, r, req.ID, `{}`)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// call handles a call with one delivery, or with several.
func (s *agentServer) call(w http.ResponseWriter, r *http.Request, req request) {
	about, items := []described{{}}, req.Params.Arguments.Deliveries
	isBatch := len(items) > 0
	if isBatch {
		_ = json.Unmarshal(req.Params.Meta.Delivery, &about)
		s.all.batchCalls.Add(1)
	} else {
		_ = json.Unmarshal(req.Params.Meta.Delivery, &about[0])
		items = []argument{{cmp.Or(req.Params.Arguments.DeliveryID, about[0].ID)}}
	}
	if len(about) != len(items) {
		s.all.cannotRead(fmt.Sprintf("agent %d was called with %d deliveries and _meta of %d", s.number, len(items), len(about)))
		http.Error(w, "which deliveries are these?", http.StatusBadRequest)
		return
	}
	var results []map[string]string
	var calls []*Call
	var first Call
	for i, item := range items {
		id, err := uuid.Parse(item.DeliveryID)
		if err != nil || about[i].ID != id.String() {
			s.all.cannotRead(fmt.Sprintf("agent %d was called with deliveryId %q and %q in _meta", s.number, item.DeliveryID, about[i].ID))
			continue
		}
		c, as := s.all.begin(s.number, id, about[i].Attempt)
		if len(calls) == 0 {
			first = as
		}
		calls, results = append(calls, c), append(results, map[string]string{"deliveryId": item.DeliveryID, "status": "accepted"})
	}
	if len(calls) == 0 {
		http.Error(w, "which delivery is this?", http.StatusBadRequest)
		return
	}
	answered := false
	defer func() {
		for _, c := range calls {
			s.all.end(c, answered)
		}
	}()
	result := `{"content":[{"type":"text","text":"thank you"}]}`
	if isBatch {
		content, _ := json.Marshal(map[string]any{"results": results})
		result = `{"content":[],"structuredContent":` + string(content) + `}`
	}
	answered = (*s.behaviour.Load())(first).perform(w, r, envelope(req.ID, result))
}

func reply(w http.ResponseWriter, r *http.Request, id json.RawMessage, result string) {
	Act{}.perform(w, r, envelope(id, result))
}

func envelope(id json.RawMessage, result string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}
