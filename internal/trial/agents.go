package trial

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// Agents are MCP servers (streamable HTTP, 2025-11-25, JSON answers) in this process, each with an address and so an origin of its own,
// or all at one. They write down every tools/call by its delivery.
type Agents struct {
	servers []*agentServer

	began    atomic.Int64 // calls
	inFlight atomic.Int64

	offersAll atomic.Bool
	listed    atomic.Bool // a servers file names them

	mu        sync.Mutex
	calls     []*Call
	delivered map[uuid.UUID][]*Call
	strange   []string // calls that could not be understood: a fault of somebody's
}

type agentServer struct {
	all       *Agents
	number    int
	address   string
	path      string
	handler   http.Handler
	behaviour atomic.Pointer[Behaviour]
	batches   atomic.Bool // it offers the tool that takes several deliveries

	mu      sync.Mutex
	server  *http.Server // nil while down
	serving sync.WaitGroup
}

// portTries is how often a port that one of the addresses cannot have is given up for another.
const portTries = 5

// StartAgents makes n agents that answer at once.
func StartAgents(n int) (*Agents, error) { return startAgents(n, (*Agents).start) }

// StartNeighbours makes n agents at one address, told apart by their paths, that answer at once. They live and die with the first.
func StartNeighbours(n int) (*Agents, error) { return startAgents(n, (*Agents).startAtOneAddress) }

func startAgents(n int, start func(*Agents, int) error) (*Agents, error) {
	var err error
	for range portTries {
		a := &Agents{delivered: map[uuid.UUID][]*Call{}}
		if err = start(a, n); err == nil {
			return a, nil
		}
		a.Close()
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

func (a *Agents) start(n int) error {
	port := "0"
	// A network of its own: what listens elsewhere on this machine can never answer for an agent that is down.
	network := 1 + rand.IntN(250)
	for i := range n {
		s := a.add(net.JoinHostPort(fmt.Sprintf("127.%d.%d.%d", network, i/250, 1+i%250), port), "/")
		s.handler = http.HandlerFunc(s.serve)
		if err := s.up(); err != nil {
			return err
		}
		_, port, _ = net.SplitHostPort(s.address)
	}
	return nil
}

func (a *Agents) startAtOneAddress(n int) error {
	paths := http.NewServeMux()
	for i := range n {
		path := fmt.Sprintf("/agents/%d/mcp", i)
		paths.HandleFunc(path, a.add("127.0.0.1:0", path).serve)
	}
	first := a.servers[0]
	first.handler = paths
	if err := first.up(); err != nil {
		return err
	}
	for _, s := range a.servers {
		s.address = first.address
	}
	return nil
}

func (a *Agents) add(address, path string) *agentServer {
	s := &agentServer{all: a, number: len(a.servers), address: address, path: path}
	s.behave(Taking(0))
	a.servers = append(a.servers, s)
	return s
}

// Close ends all of them; calls in flight are dropped.
func (a *Agents) Close() {
	for _, s := range a.servers {
		s.down()
	}
}

// Len is how many there are.
func (a *Agents) Len() int { return len(a.servers) }

// URL is where agent i takes calls.
func (a *Agents) URL(i int) string { return "http://" + a.servers[i].address + a.servers[i].path }

// Behave makes agent i take calls as b says.
func (a *Agents) Behave(i int, b Behaviour) { a.servers[i].behave(b) }

// BehaveAll makes all of them take calls as b says.
func (a *Agents) BehaveAll(b Behaviour) {
	for _, s := range a.servers {
		s.behave(b)
	}
}

// OfferAll has every agent offer the tools for all kinds of jobs, instead of agent.receiveFeedback alone.
func (a *Agents) OfferAll() { a.offersAll.Store(true) }

// OfferBatches has agent i offer, beside agent.receiveFeedback, the tool that takes several in one call. Each of them is written down as a
// call of its own; the first says how the whole is taken.
func (a *Agents) OfferBatches(i int) { a.servers[i].batches.Store(true) }

// Down makes agent i die: its connections are dropped and new ones refused.
func (a *Agents) Down(i int) { a.servers[i].down() }

// Up brings agent i back at its address.
func (a *Agents) Up(i int) error { return a.servers[i].up() }

// Line is a job about agent i, as the enqueue program takes it, newline included. Every serial is another client, so that no order
// binds two deliveries; the same line twice is the same event.
func (a *Agents) Line(i, serial int) string {
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
		`"action":%s}`+"\n", i+1, serial+1, a.action(i))
}

// action is the action of agent i's jobs. It names the agent's URL unless a servers file does.
func (a *Agents) action(i int) string {
	if a.listed.Load() {
		return `{"includeFileContent":false}`
	}
	return fmt.Sprintf(`{"resolveEndpoint":false,"includeFileContent":false,"endpoint":{"transport":"http","url":"%s"}}`, a.URL(i))
}

// writeServersFile writes a servers file that names the URL of each agent. Jobs leave it to the file from then on.
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

// InFlight is how many calls are with the agents now.
func (a *Agents) InFlight() int { return int(a.inFlight.Load()) }

// Count is how many calls have come so far.
func (a *Agents) Count() int { return int(a.began.Load()) }

// Calls copies what was written down, in the order in which the calls came. An error: calls came that no delivery can be named for.
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

// maxRequest bounds what an agent reads; Herald's own limit is larger, what trials send is not.
const maxRequest = 1 << 20

type request struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Arguments struct {
			argument
			Deliveries []argument `json:"deliveries"`
		} `json:"arguments"`
		Meta struct {
			Delivery json.RawMessage `json:"io.agentherald/delivery"` // of one, or a list
		} `json:"_meta"`
	} `json:"params"`
}

// argument is what is read of a delivery's arguments.
type argument struct {
	DeliveryID string `json:"deliveryId"`
}

// described is what _meta says of a delivery.
type described struct {
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
}

// tools are what an agent offers: one of the four that a job may be for, or all of them.
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
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var req request
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest)) // to its end: only then net/http tells when the caller leaves
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil {
		http.Error(w, "no JSON-RPC", http.StatusBadRequest)
		return
	}
	switch req.Method {
	case "initialize":
		reply(w, r, req.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"recording agent","version":"1"}}`)
	case "tools/list":
		tools := oneTool
		switch {
		case s.all.offersAll.Load():
			tools = allTools
		case s.batches.Load():
			tools = batchTools
		}
		reply(w, r, req.ID, tools)
	case "tools/call":
		s.call(w, r, req)
	case "ping":
		reply(w, r, req.ID, `{}`)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func (s *agentServer) call(w http.ResponseWriter, r *http.Request, req request) {
	if len(req.Params.Arguments.Deliveries) > 0 {
		s.callBatch(w, r, req)
		return
	}
	var about described
	_ = json.Unmarshal(req.Params.Meta.Delivery, &about)
	id, err := uuid.Parse(cmp.Or(req.Params.Arguments.DeliveryID, about.ID))
	if err != nil || about.ID != id.String() {
		s.all.cannotRead(fmt.Sprintf("agent %d was called with deliveryId %q and %q in _meta", s.number, req.Params.Arguments.DeliveryID, about.ID))
		http.Error(w, "which delivery is this?", http.StatusBadRequest)
		return
	}
	c, as := s.all.begin(s.number, id, about.Attempt)
	answered := false
	defer func() { s.all.end(c, answered) }()
	answered = (*s.behaviour.Load())(as).perform(w, r, envelope(req.ID, `{"content":[{"type":"text","text":"thank you"}]}`))
}

// callBatch takes a call of several deliveries.
func (s *agentServer) callBatch(w http.ResponseWriter, r *http.Request, req request) {
	var about []described
	if err := json.Unmarshal(req.Params.Meta.Delivery, &about); err != nil || len(about) != len(req.Params.Arguments.Deliveries) {
		s.all.cannotRead(fmt.Sprintf("agent %d was called with %d deliveries and _meta of others", s.number, len(req.Params.Arguments.Deliveries)))
		http.Error(w, "which deliveries are these?", http.StatusBadRequest)
		return
	}
	var results []map[string]string
	var calls []*Call
	var first Call
	for i, item := range req.Params.Arguments.Deliveries {
		id, err := uuid.Parse(item.DeliveryID)
		if err != nil || about[i].ID != item.DeliveryID {
			s.all.cannotRead(fmt.Sprintf("agent %d was called with deliveryId %q and %q in _meta", s.number, item.DeliveryID, about[i].ID))
			continue
		}
		c, as := s.all.begin(s.number, id, about[i].Attempt)
		if len(calls) == 0 {
			first = as
		}
		calls, results = append(calls, c), append(results, map[string]string{"deliveryId": item.DeliveryID, "status": "accepted"})
	}
	answered := false
	defer func() {
		for _, c := range calls {
			s.all.end(c, answered)
		}
	}()
	content, _ := json.Marshal(map[string]any{"results": results})
	answered = (*s.behaviour.Load())(first).perform(w, r, envelope(req.ID, `{"content":[],"structuredContent":`+string(content)+`}`))
}

func reply(w http.ResponseWriter, r *http.Request, id json.RawMessage, result string) {
	Act{}.perform(w, r, envelope(id, result))
}

func envelope(id json.RawMessage, result string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}
