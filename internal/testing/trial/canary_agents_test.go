package trial

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// keeper is an agent that requires a credential and repeats it everywhere: in answers, errors, pages, its name, its
// tools and its session id.
type keeper struct {
	*httptest.Server
	more    []net.Listener // at other ports
	name    string
	control string
	tool    string

	challenge string // WWW-Authenticate header of its 401

	mu      sync.Mutex
	wants   []string // texts that a request must contain
	did     map[string]int
	met     map[string]bool // deliveries whose first call has arrived
	streams []chan string   // streams of HTTP+SSE
	hung    atomic.Int64
	state   atomic.Value // "", refuses or hangs
}

// These are the states of a keeper.
const (
	refuses = "refuses"
	hangs   = "hangs"
)

// mishaps lists the possible effects of a delivery's first call, which its tag1 selects. Later calls succeed. true: the
// delivery ends with the first call.
var mishaps = map[string]bool{
	"answer": true, "stream": true, "tool error": true, "wrong arguments": true, "HTTP 400": true, "redirect": true,
	"JSON-RPC error": false, "HTTP 500 as a page": false, "HTTP 502 as JSON": false, "no JSON": false, "breaks off": false,
}

// newKeeper starts a keeper that does not require a credential yet.
func (w *canaryWorld) newKeeper(name string) *keeper {
	w.t.Helper()
	k := &keeper{name: name, control: w.control, tool: w.control, did: map[string]int{}, met: map[string]bool{}}
	k.state.Store("")
	k.Server = httptest.NewServer(k)
	for range len(mishaps) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		w.must(err)
		k.more = append(k.more, l)
		go func() { _ = k.Config.Serve(l) }()
	}
	w.t.Cleanup(func() { k.CloseClientConnections(); _ = k.Config.Close(); k.Close() })
	return k
}

// origin returns one of the keeper's origins. Calls to one origin that jobs name wait for each other.
func (k *keeper) origin(n int) string { return "http://" + k.more[n%len(k.more)].Addr().String() }

// want makes the keeper refuse requests that do not contain all these texts.
func (k *keeper) want(texts ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wants = texts
}

func (k *keeper) note(what string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.did[what]++
}

// first returns the mishap for a delivery's first call, and "" for later ones.
func (k *keeper) first(delivery, mishap string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.met[delivery] {
		return ""
	}
	k.met[delivery] = true
	return mishap
}

func (k *keeper) count(what string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.did[what]
}

// brought returns every text of a request that may be a credential, and whether the required ones are among them.
func (k *keeper) brought(r *http.Request) (texts []string, ok bool) {
	for name, values := range r.Header {
		if name == "Authorization" || strings.HasPrefix(name, "X-") {
			texts = append(texts, values...)
		}
	}
	for part := range strings.SplitSeq(r.URL.Path, "/") {
		if len(part) > 12 {
			texts = append(texts, part)
		}
	}
	if r.URL.RawQuery != "" {
		texts = append(texts, r.URL.RawQuery)
		for _, values := range r.URL.Query() {
			texts = append(texts, values...)
		}
	}
	slices.Sort(texts)
	all := strings.Join(texts, "\n")
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, text := range k.wants {
		if !strings.Contains(all, text) {
			return texts, false
		}
	}
	return texts, len(k.wants) > 0
}

// inJSON returns the spellings of a text by the JSON encoders of Go, PHP and Java's Gson, and one that escapes every
// character. All have the same meaning.
func inJSON(s string) []string {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	plain := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
	timid := &strings.Builder{}
	for _, c := range []byte(s) {
		fmt.Fprintf(timid, `\u%04X`, c)
	}
	return []string{plain, string(quoted), strings.ReplaceAll(plain, "/", `\/`),
		strings.NewReplacer("=", `\u003d`, "<", `\u003c`, ">", `\u003e`, "&", `\u0026`, "'", `\u0027`).Replace(plain), `"` + timid.String() + `"`}
}

// told returns a JSON object with the texts in every spelling.
func told(texts []string) string {
	var all []string
	for _, s := range texts {
		all = append(all, inJSON(s)...)
	}
	return `{"received":[` + strings.Join(all, ",") + `]}`
}

// sentence returns a text for a page or a message that contains the texts in every spelling.
func sentence(texts []string) string {
	var all []string
	for _, s := range texts {
		all = append(all, s, url.QueryEscape(s), url.PathEscape(s), html.EscapeString(s), fmt.Sprintf("%q", s), strings.Join(inJSON(s), " "))
	}
	return "these are not welcome: " + strings.Join(all, ", ")
}

func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, isMessage := strings.CutPrefix(r.URL.Path, "/messages/")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/sse":
		k.serveStream(w, r)
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case isMessage:
		k.serveMessage(w, r, number)
	default:
		k.serve(w, r)
	}
}

// serveStream serves the event stream of HTTP+SSE (2024-11-05). Its message endpoint contains the credential.
func (k *keeper) serveStream(w http.ResponseWriter, r *http.Request) {
	texts, ok := k.brought(r)
	if !ok || k.state.Load() == refuses {
		k.serve(w, r) // this answers the refusal
		return
	}
	events := make(chan string)
	k.mu.Lock()
	k.streams = append(k.streams, events)
	number := len(k.streams) - 1
	k.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "event: endpoint\ndata: /messages/%d?token=%s\n\n", number, url.QueryEscape(texts[0]))
	for {
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case text := <-events:
			fmt.Fprint(w, text)
		}
	}
}

// serveMessage receives a message of a stream. A successful answer is sent in the stream, another one in the response.
func (k *keeper) serveMessage(w http.ResponseWriter, r *http.Request, number string) {
	n, err := strconv.Atoi(number)
	k.mu.Lock()
	ok := err == nil && n < len(k.streams)
	var events chan string
	if ok {
		events = k.streams[n]
	}
	k.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	answer := httptest.NewRecorder()
	k.serve(answer, r)
	body := answer.Body.String()
	if answer.Code != http.StatusOK {
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		fmt.Fprint(w, body)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	if answer.Header().Get("Content-Type") != "text/event-stream" {
		body = "event: message\ndata: " + body + "\n\n"
	}
	if http.NewResponseController(w).Flush() == nil {
		select {
		case events <- body:
		case <-r.Context().Done():
		}
	}
}

// serve serves streamable HTTP.
func (k *keeper) serve(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Arguments struct {
				Tag1 string `json:"tag1"`
			} `json:"arguments"`
			Meta struct {
				Delivery struct {
					ID string `json:"id"`
				} `json:"io.agentherald/delivery"`
			} `json:"_meta"`
		} `json:"params"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxRequest)).Decode(&req); err != nil && r.Method == http.MethodPost {
		http.Error(w, "no JSON-RPC", http.StatusBadRequest)
		return
	}
	texts, ok := k.brought(r)
	if state := k.state.Load(); !ok || state == refuses {
		k.note(cmp.Or(state.(string), "asks for a credential"))
		if k.challenge != "" {
			w.Header().Add("WWW-Authenticate", k.challenge)
		}
		w.Header().Add("WWW-Authenticate", fmt.Sprintf(`Bearer realm="agent", error="invalid_token", error_description=%q`, strings.Join(texts, " ")))
		http.Error(w, sentence(texts), http.StatusUnauthorized)
		return
	}
	about := strings.Join(texts, " and ")
	switch req.Method {
	case "initialize":
		if len(texts) > 0 { // the session id is the credential itself
			w.Header().Set("Mcp-Session-Id", strings.Map(func(r rune) rune {
				if r <= ' ' || r > '~' {
					return '-'
				}
				return r
			}, texts[0]))
		}
		reply(w, r, req.ID, fmt.Sprintf(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"instructions":%s,"serverInfo":{"name":%s,"version":%s}}`,
			inJSON(about)[2], inJSON("agent of " + about)[3], inJSON(about)[4]))
	case "tools/list":
		reply(w, r, req.ID, k.tools(about))
	case "tools/call":
		k.call(w, r, req.ID, texts, req.Params.Arguments.Tag1, req.Params.Meta.Delivery.ID)
	case "ping":
		reply(w, r, req.ID, `{}`)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// tools lists three tools: one that accepts everything, one that is named after the credential, and one whose schema
// contains the credential. Herald quotes the schema if arguments do not fit it.
func (k *keeper) tools(about string) string {
	const picky = "agent.receivePicky"
	list := []string{fmt.Sprintf(`{"name":"agent.receiveFeedback","description":%s,"inputSchema":{"type":"object"}}`, inJSON(about)[0]),
		fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, k.tool), fmt.Sprintf(`{"name":%s,"inputSchema":{"type":"object"}}`, inJSON(about)[4])}
	values := inJSON(about)
	return `{"tools":[` + strings.Join(append(list, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object","required":["tag1",%s],"properties":{"tag1":{"enum":[%s]}}}}`,
		picky, values[4], strings.Join(values[2:], ","))), ",") + `]}`
}

func (k *keeper) call(w http.ResponseWriter, r *http.Request, id json.RawMessage, texts []string, mishap, delivery string) {
	if k.state.Load() == hangs {
		k.hung.Add(1)
		<-r.Context().Done()
		return
	}
	if mishap = k.first(delivery, mishap); mishap == "" {
		mishap = "answer"
	}
	k.note(mishap)
	said, words := told(texts), sentence(texts)
	answer := fmt.Sprintf(`{"content":[{"type":"text","text":%s},{"type":"text","text":%s}],"structuredContent":%s,"_meta":%s}`, inJSON(words)[2], inJSON(said)[0], said, said)
	switch mishap {
	case "tool error":
		reply(w, r, id, fmt.Sprintf(`{"isError":true,"content":[{"type":"text","text":%s},{"type":"text","text":%s}]}`, inJSON(k.control + " " + words)[3], inJSON(said)[2]))
	case "stream":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"error\",\"data\":%s}}\n\n", said)
		fmt.Fprintf(w, "event: message\ndata: %s\n\n", envelope(id, answer))
	case "wrong arguments":
		k.fault(w, id, -32602, words, said)
	case "JSON-RPC error":
		k.fault(w, id, -32603, words, said)
	case "HTTP 400":
		http.Error(w, words, http.StatusBadRequest)
	case "HTTP 500 as a page":
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, "<h1>%s</h1>", html.EscapeString(words))
	case "HTTP 502 as JSON":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, said)
	case "redirect":
		w.Header().Set("Location", "http://127.0.0.1:1/?token="+url.QueryEscape(strings.Join(texts, ",")))
		w.WriteHeader(http.StatusTemporaryRedirect)
		fmt.Fprint(w, words)
	case "no JSON":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, words)
	case "breaks off":
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100000")
		_, _ = w.Write(envelope(id, answer))
	default:
		reply(w, r, id, answer)
	}
}

func (k *keeper) fault(w http.ResponseWriter, id json.RawMessage, code int, message, data string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s,"data":%s}}`, id, code, inJSON(message)[2], data)
}

// job returns a line for the enqueue program about agent number of chain 8453. happens is its tag1. endpoint is an
// action.endpoint; if it is empty, the servers file determines the endpoint.
func (w *canaryWorld) job(number, serial int, happens, tool, endpoint string) string {
	action := `"resolveEndpoint":true`
	if endpoint != "" {
		action = `"resolveEndpoint":false,"endpoint":` + endpoint
	}
	if tool != "" {
		action += fmt.Sprintf(`,"toolName":%q`, tool)
	}
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,"tag1":%q,`+
		`"action":{"includeFileContent":false,%s}}`+"\n", number, serial, happens, action)
}

// stdioVariable makes this test binary an agent that a worker starts.
const stdioVariable = "HERALD_CANARY_AGENT"

// TestCanaryAgent is not a test. A worker starts it as a stdio agent that repeats its environment in every answer.
func TestCanaryAgent(t *testing.T) {
	if os.Getenv(stdioVariable) == "" {
		return
	}
	texts := []string{os.Getenv("AGENT_KEY"), os.Getenv("AGENT_KEY_TOO")}
	fmt.Fprintln(os.Stderr, "started:", sentence(texts))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var req struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal(lines.Bytes(), &req) != nil || req.ID == nil {
			continue
		}
		result := `{}`
		switch req.Method {
		case "initialize":
			result = fmt.Sprintf(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":%s,"version":"1"}}`, inJSON(texts[0])[3])
		case "tools/list":
			result = `{"tools":[{"name":"agent.receiveFeedback","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			result = fmt.Sprintf(`{"content":[{"type":"text","text":%s}],"structuredContent":%s}`, inJSON(sentence(texts))[2], told(texts))
		}
		fmt.Printf("%s\n", envelope(req.ID, result))
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}
