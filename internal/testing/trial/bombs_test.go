package trial

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multihash"
)

const (
	bombTime    = 4 * time.Minute // limit of the whole test on a busy machine; on an idle one it takes ten seconds
	bombs       = 32              // documents at once; four of any kind would exceed mostMemory if decoded together
	mostMemory  = 400 << 20       // resident memory of a worker that processes all of them
	documentMax = 2 << 20

	// mostWait bounds the time from the enqueueing of a healthy agent's delivery to its call (docs/guarantees.md). Other
	// programs lengthen that time, so a longer one is a fault only if the worker has used more CPU time than mostWork.
	mostWait, mostWork = 5 * time.Second, 2 * time.Second
)

// TestDecodingBombs gives a worker 32 valid documents at once, each of which would take a hundred times its size when
// decoded, and at the same time a delivery to a healthy agent.
func TestDecodingBombs(t *testing.T) {
	needLinux(t)
	b := &bomber{blocks: map[string][]byte{}}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	w := startOneWorker(t, "bombs", bombTime, bombs+1, bombs, "IPFS_GATEWAYS="+b.URL, "RPC_URL_8453="+b.URL+"/rpc",
		"HERALD_RETRY_SCHEDULE=100ms,100ms", "HERALD_LEASE=60s")
	healthy := bombs
	_, _, err := w.Enqueue(w.ctx, strings.NewReader(w.agents.Line(healthy, 0)))
	w.must(err)
	w.must(w.AwaitFinal(w.ctx))
	before := w.checkMemory()

	var lines strings.Builder
	for i := range bombs {
		lines.WriteString(b.line(w.agents, i))
	}
	_, _, err = w.Enqueue(w.ctx, strings.NewReader(lines.String()))
	w.must(err)
	began, working := time.Now(), w.workTime()
	w.checkCalled(w.agents.Line(healthy, 1))
	w.must(w.AwaitFinal(w.ctx))
	took := time.Since(began)
	peak := w.checkMemory()
	rows, err := w.Rows(w.ctx)
	w.must(err)
	t.Log(NewFigures("bombs", strconv.Itoa(bombs)).Add("before", before).Add("peak", peak).Add("took", took).Add("work", w.workTime()-working), CountStatus(rows))
	for want, n := range map[string]int{"rejected hash_mismatch": 8, "skipped no_document": 6, "delivered": 12 + 2} {
		if got := CountStatus(rows)[want]; got < n {
			t.Errorf("%d deliveries are %s, want %d: %v", got, want, n, CountStatus(rows))
		}
	}
}

// checkCalled enqueues a job for a healthy agent, and fails the test if its call is late (mostWait, mostWork).
func (w *oneWorker) checkCalled(line string) {
	w.t.Helper()
	accepted, _, err := w.Enqueue(w.ctx, strings.NewReader(line))
	w.must(err)
	began, working := time.Now(), w.workTime()
	w.must(Until(w.ctx, pollQuick, "the healthy agent to be called", func() (bool, error) {
		calls, err := w.agents.Calls()
		return slices.ContainsFunc(calls, func(c Call) bool { return c.Delivery == accepted[0] }), err
	}))
	waited, worked := time.Since(began), w.workTime()-working
	w.t.Logf("the healthy agent was called after %s and %s of CPU time", waited, worked)
	if waited > mostWait && worked > mostWork {
		w.t.Errorf("the healthy agent was called after %s and %s of CPU time, %s and %s are allowed", waited, worked, mostWait, mostWork)
	}
}

// serveAt serves h at n addresses of 127.0.network.0/24 until the test ends, and returns their URLs. Each agent has its
// own address, because one address gets only a part of a worker's slots.
func serveAt(t *testing.T, h http.Handler, network, n int) (urls []string) {
	t.Helper()
	server := &http.Server{Handler: h}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	for i := range n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.%d.%d:0", network, i+1))
		heraldtest.Must(t, err)
		urls = append(urls, "http://"+l.Addr().String())
		serving.Go(func() { _ = server.Serve(l) })
	}
	return urls
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the most memory that a process has held")
	}
}

// checkMemory fails the test if the worker has held more memory than allowed, and returns the most that it has held, in
// MiB.
func (w *oneWorker) checkMemory() (peak uint64) {
	w.t.Helper()
	status, err := w.worker.Status()
	w.must(err)
	if peak = status.VmHWM >> 20; peak > mostMemory>>20 {
		w.t.Errorf("the worker held %d MiB, %d are allowed", peak, mostMemory>>20)
	}
	return peak
}

// workTime returns the CPU time that the worker has used.
func (w *oneWorker) workTime() time.Duration {
	w.t.Helper()
	const user, system, ticks = 13, 14, 100 // proc_pid_stat(5)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.worker.PID()))
	w.must(err)
	fields := strings.Fields(string(stat))
	u, uErr := strconv.Atoi(fields[user])
	s, sErr := strconv.Atoi(fields[system])
	w.must(errors.Join(uErr, sErr))
	return time.Duration(u+s) * time.Second / ticks
}

// bomber serves all of them: files, an IPFS gateway, a chain's node, and agents.
type bomber struct {
	*httptest.Server
	mu     sync.Mutex
	blocks map[string][]byte // by CID
}

// line returns a job with document i. The documents rotate through five kinds, and no two are equal.
func (b *bomber) line(agents *Agents, i int) string {
	action := fmt.Sprintf(`"resolveEndpoint":false,"endpoint":{"transport":"http","url":"%s"}`, agents.URL(i))
	uri := ""
	salt := fmt.Appendf(nil, "%08d", i)
	switch i % 8 {
	case 0, 1: // a file with a wrong hash
		uri = fmt.Sprintf("%s/file/%d", b.URL, i)
	case 2: // a child in CBOR
		uri = "ipfs://" + b.add(cid.DagProtobuf, parentOf(b.add(cid.DagCBOR, cborBomb(documentMax-64, salt))))
	case 3, 4: // links
		uri = "ipfs://" + b.add(cid.DagProtobuf, linkBomb(documentMax/8-8, salt))
	case 5: // a registration
		action = `"resolveEndpoint":true`
	case 6: // agents' tools
		action = fmt.Sprintf(`"resolveEndpoint":false,"endpoint":{"transport":"http","url":"%s/mcp/%d"}`, b.URL, i)
	case 7:
		action = `"resolveEndpoint":true`
	}
	file := `"includeFileContent":false`
	if uri != "" {
		file = `"includeFileContent":true,"verifyFileHash":true`
	}
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
		`"feedbackURI":%q,"feedbackHash":"0x%064x","action":{%s,%s}}`+"\n", 1000+i, 1000+i, uri, i+1, action, file)
}

func (b *bomber) add(codec uint64, block []byte) string {
	c, err := cid.Prefix{Version: 1, Codec: codec, MhType: multihash.SHA2_256, MhLength: -1}.Sum(block)
	if err != nil {
		panic(err) // SHA-256 accepts any input
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blocks[c.String()] = block
	return c.String()
}

func (b *bomber) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	number, _ := strconv.Atoi(name)
	switch kind {
	case "ipfs":
		b.mu.Lock()
		block, ok := b.blocks[name]
		b.mu.Unlock()
		if !ok || r.URL.Query().Get("format") != "raw" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(block)
	case "file":
		if number%16 < 8 {
			_, _ = w.Write(fillJSON(fmt.Sprintf(`{"n":%d,"a":[`, number), "0", "]}", documentMax)) // a million values
			return
		}
		// This has as many members as are allowed, in as many bytes as are allowed.
		_, _ = w.Write(fillJSON(fmt.Sprintf(`{"n":%d`, number), `"`+strings.Repeat("n", 30)+`%09d":0`, "}", documentMax*7/8))
	case "registration":
		if number%16 < 8 {
			_, _ = w.Write([]byte(fmt.Sprintf(`{"n":%d,"services":`, number) + strings.Repeat(`{"a":`, 100_000) + "0" + strings.Repeat("}", 100_000) + "}"))
			return
		}
		_, _ = w.Write(fillJSON(fmt.Sprintf(`{"n":%d,"services":[`, number), "{}", "]}", 1<<20))
	case "rpc":
		b.serveChain(w, r)
	case "mcp":
		serveBombTools(w, r, number)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// serveChain is a node that only answers where registrations are.
func (b *bomber) serveChain(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params []any           `json:"params"`
	}
	w.Header().Set("Content-Type", "application/json")
	if json.NewDecoder(r.Body).Decode(&req) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	result := `"0x2105"`
	if req.Method == "eth_call" {
		call, _ := req.Params[0].(map[string]any)
		data, _ := call["data"].(string)
		raw, err := hex.DecodeString(strings.TrimPrefix(data, "0x"))
		if err != nil || len(raw) != 36 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		uri := fmt.Sprintf("%s/registration/%d", b.URL, new(big.Int).SetBytes(raw[4:]).Int64()-1000)
		result = fmt.Sprintf(`"0x%064x%064x%x%s"`, 32, len(uri), uri, strings.Repeat("00", 31-(len(uri)+31)%32))
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result)
}

// serveBombTools is an agent whose tools list is the bomb.
func serveBombTools(w http.ResponseWriter, r *http.Request, number int) {
	serveMCP(w, r, "bomber", func() string {
		list := `{"tools":[{"name":"agent.receiveFeedback","inputSchema":{"type":"object","properties":{"value":`
		if number%16 < 8 {
			return string(fillJSON(list+`{"enum":[`, "0", `]}}}}]}`, 1<<20-1<<10))
		}
		return string(fillJSON(list+`{"anyOf":[`, `{"enum":[%d,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]}`, `]}}}}]}`, 120<<10))
	}, func(req request) { reply(w, r, req.ID, `{"content":[{"type":"text","text":"thank you"}]}`) })
}

// fillJSON returns about size bytes of JSON that repeat item. If item contains a verb, it gets the item's number.
func fillJSON(before, item, after string, size int) []byte {
	out := bytes.NewBufferString(before)
	for i := 0; out.Len() < size-1<<10; i++ {
		if c := before[len(before)-1]; i > 0 || c != '[' && c != '{' {
			out.WriteByte(',')
		}
		if strings.Contains(item, "%") {
			fmt.Fprintf(out, item, i)
		} else {
			out.WriteString(item)
		}
	}
	out.WriteString(after)
	return out.Bytes()
}

// pbField encodes a length-delimited field of a protobuf message.
func pbField(number byte, value []byte) []byte {
	return append(binary.AppendUvarint([]byte{number<<3 | 2}, uint64(len(value))), value...)
}

// linkBomb returns the dag-pb block of a file with n links to an empty block, which is contained in its CID.
func linkBomb(n int, salt []byte) []byte {
	return append(bytes.Repeat([]byte{0x12, 6, 0x0a, 4, 1, 0x55, 0, 0}, n), pbField(1, append([]byte{8, 2, 0x12, byte(len(salt))}, salt...))...)
}

// cborBomb returns a dag-cbor list of n numbers.
func cborBomb(n int, salt []byte) []byte {
	list := append([]byte{0x9a, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, make([]byte, n)...)
	for i, c := range salt {
		list[5+i] = c & 15
	}
	return list
}

// parentOf returns the block of a file whose only part is child.
func parentOf(child string) []byte {
	c, err := cid.Decode(child)
	if err != nil {
		panic(err) // the caller made the CID
	}
	return append(pbField(2, pbField(1, c.Bytes())), pbField(1, []byte{8, 2, 0x18, 4, 0x20, 4})...)
}
