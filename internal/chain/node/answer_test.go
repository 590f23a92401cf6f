package node

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/gorilla/websocket"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAnswersAreBoundedBeforeTheyAreDecoded: a compressed answer that expands to millions of values costs little
// memory. The error names the reason for its rejection.
func TestAnswersAreBoundedBeforeTheyAreDecoded(t *testing.T) { // not parallel: it measures the allocations of the process
	objects := "[" + strings.Repeat("{},", 5<<20) + "{}]"
	var squeezed bytes.Buffer
	z := gzip.NewWriter(&squeezed)
	_, _ = io.WriteString(z, objects)
	_ = z.Close()
	if squeezed.Len() > 32<<10 {
		t.Fatalf("the bomb has %d bytes", squeezed.Len())
	}
	for name, c := range map[string]struct {
		body, encoding string
		want           error
	}{
		"compressed without being asked": {squeezed.String(), "gzip", errCompressed},
		"more answers than questions":    {"[" + strings.Repeat("{},", 100_000) + "{}]", "", errManyElements},
		"too many tokens":                {`[{"jsonrpc":"2.0","id":1,"result":` + objects + "}]", "", ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			node := serveRaw(t, func(w http.ResponseWriter, r *http.Request) {
				heraldtest.Equal(t, "asked with Accept-Encoding", r.Header.Get("Accept-Encoding"), "")
				w.Header().Set("Content-Type", "application/json")
				if c.encoding != "" {
					w.Header().Set("Content-Encoding", c.encoding)
				}
				_, _ = io.WriteString(w, c.body)
			})
			client := newPool(t, Config{ChainID: 1, URLs: []secret.Secret{secret.New(node)}, Decoding: decode.NewBudget(1 << 20)})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var asking sync.WaitGroup
			for range 4 {
				asking.Go(func() {
					_, err := client.ReadHead(context.Background())
					if !errors.Is(err, c.want) {
						t.Errorf("%v, want %v", err, c.want)
					}
				})
			}
			asking.Wait()
			runtime.ReadMemStats(&after)
			// Reading a body of 15 MB allocates five times as much, since its buffer grows. Decoding it without bounds
			// took 871 MB.
			if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 4*100 {
				t.Errorf("four answers allocated %d MiB", grown)
			}
		})
	}
}

// serveRaw serves a node whose answers answer writes, except for a request that only asks for the chain id.
func serveRaw(t *testing.T, answer http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !bytes.HasPrefix(body, []byte("[")) && bytes.Contains(body, []byte("eth_chainId")) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":"0x1"}`)
			return
		}
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestAnswersShareTheDecodingBudget: a large answer waits while other documents use the decoding budget. The wait is
// not counted as a failure of the node.
func TestAnswersShareTheDecodingBudget(t *testing.T) {
	t.Parallel()
	budget := decode.NewBudget(1 << 20)
	release, err := budget.Acquire(t.Context(), 1<<20)
	heraldtest.Must(t, err)
	node := chaintest.NewNode(t, 1)
	node.Set(nil, chaintest.AnswerTo("eth_getLogs", []string{strings.Repeat("x", 64<<10)}, nil))
	client := newStubPool(t, node)
	client.decoding = budget
	ask := func(ctx context.Context) error {
		var answer []string
		_, err := client.SendBatch(ctx, "asking", []rpc.BatchElem{{Method: "eth_getLogs", Args: []any{}, Result: &answer}})
		return err
	}
	ctx := heraldtest.Within(t, time.Second) // the answer must arrive within it, also on a busy machine
	heraldtest.Fails(t, "while the budget is used up", ask(ctx), decode.ErrBusy)
	release()
	heraldtest.Must(t, ask(t.Context()))
}

// TestLargeAnswersShareMemory: a node that answers all questions of a worker at once with large bodies, and does not end
// them, makes this process read two of them at a time.
func TestLargeAnswersShareMemory(t *testing.T) {
	t.Parallel()
	const questions = 6
	large := bytes.Repeat([]byte(" "), maxAnswer-1)
	var asked, sent, most atomic.Int32
	server := serveRaw(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		// A client that does not read lets the server write what fits into the buffers of the connection.
		if _, err := w.Write(large); err != nil {
			return
		}
		n := sent.Add(1)
		defer sent.Add(-1)
		for known := most.Load(); n > known && !most.CompareAndSwap(known, n); known = most.Load() {
		}
		<-r.Context().Done()
	})
	client := newPool(t, Config{ChainID: 1, Timeout: 5 * time.Second, URLs: []secret.Secret{secret.New(server)}})
	heraldtest.Must(t, client.Ping(t.Context()))
	var asking sync.WaitGroup
	for range questions {
		asking.Go(func() {
			var answer json.RawMessage
			if client.SendCall(t.Context(), "asking", &answer, "eth_getTransactionReceipt") == nil {
				t.Error("an answer without an end was accepted")
			}
		})
	}
	asking.Wait()
	heraldtest.Equal(t, "questions that the node got", asked.Load(), questions)
	if n := most.Load(); n > 2 {
		t.Errorf("%d answers of %d bytes are in memory at a time", n, maxAnswer)
	}
}

// TestLargeAnswersLeaveOtherNode: the first node never ends its large answers. Questions that wait for these go to the
// second node.
func TestLargeAnswersLeaveOtherNode(t *testing.T) {
	t.Parallel()
	server := serveRaw(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte(" "), 2*smallAnswer))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	second := chaintest.NewNode(t, 2)
	second.Set(nil, chaintest.AnswerTo("eth_getTransactionReceipt", map[string]any{}, nil))
	client := newPool(t, Config{ChainID: 1, Timeout: 2 * time.Second, URLs: []secret.Secret{secret.New(server), secret.New(second.URL)}})
	heraldtest.Must(t, client.Ping(t.Context()))
	var asking sync.WaitGroup
	for range 6 {
		asking.Go(func() {
			var answer json.RawMessage
			if err := client.SendCall(t.Context(), "asking", &answer, "eth_getTransactionReceipt"); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
}

// TestErrorOfWaitingAnswer: a large answer waits for others that are being read. If it waits too long, the error says so.
func TestErrorOfWaitingAnswer(t *testing.T) {
	t.Parallel()
	node := chaintest.NewNode(t, 1)
	node.Set(nil, chaintest.AnswerTo("eth_getLogs", strings.Repeat("x", 2*smallAnswer), nil))
	client := newStubPool(t, node)
	release, err := client.nodes[0].reading.Acquire(t.Context(), maxReading)
	heraldtest.Must(t, err)
	defer release()
	client.timeout = 2 * time.Second // enough for the beginning of the answer, also on a busy machine
	err = client.SendCall(t.Context(), "asking", new(string), "eth_getLogs")
	heraldtest.Fails(t, "a large answer", err, decode.ErrBusy)
	heraldtest.Contains(t, "the error", err.Error(), "other large answers of the node are being read")
}

// budgetWorld returns a client of two nodes, the first of which sends large answers, its second node, and its decoding
// budget.
func budgetWorld(t *testing.T, bytes int64, result any) (c *Pool, second *chaintest.Node, budget *decode.Budget) {
	t.Helper()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	first.Set(nil, chaintest.AnswerTo("eth_getLogs", result, nil))
	second.Set(nil, nil)
	budget = decode.NewBudget(bytes)
	return newPool(t, Config{ChainID: 1, Timeout: 20 * time.Second, Decoding: budget,
		URLs: []secret.Secret{secret.New(first.URL), secret.New(second.URL)}}), second, budget
}

// TestRequestReservesOneAnswer: a question that needs several requests to its node reserves budget only for the latest
// answer. So it does not wait for its own reservation, and reserves nothing while it waits for the node.
func TestRequestReservesOneAnswer(t *testing.T) {
	t.Parallel()
	c, _, budget := budgetWorld(t, 64<<10, strings.Repeat("x", 64<<10))
	_, err := c.askNode(t.Context(), "asking", func(ctx context.Context, conn nodeConn) error {
		for range 3 {
			if err := conn.CallContext(ctx, new(string), "eth_getLogs"); err != nil {
				return err
			}
		}
		return nil
	})
	heraldtest.Must(t, err)
	release, err := budget.Acquire(t.Context(), 64<<10)
	heraldtest.Must(t, err)
	release()
}

// TestBusyDecodingIsNoNodeFault: an answer does not get decoding budget in time, because its number of tokens makes it
// large. The client asks no other node, does not count a timeout of the node, and narrows no range.
func TestBusyDecodingIsNoNodeFault(t *testing.T) {
	t.Parallel()
	const receipts = 20_000 // 60 kB, but 40,000 tokens
	c, second, budget := budgetWorld(t, 1<<20, make([]struct{}, receipts))
	heraldtest.Must(t, c.Ping(t.Context()))
	second.Set(nil, nil)
	release, err := budget.Acquire(t.Context(), 512<<10)
	heraldtest.Must(t, err)
	defer release()
	c.timeout = time.Second // of each question; the caller's context lasts longer
	elems := []rpc.BatchElem{{Method: "eth_getLogs", Result: new(json.RawMessage)}}
	_, err = c.SendBatch(t.Context(), "asking", elems)
	if !errors.Is(err, decode.ErrBusy) || IsRefusedRange(err) {
		t.Errorf("%v", err)
	}
	heraldtest.Equal(t, "questions to another node", second.Count(), 0)
	heraldtest.Equal(t, "the rank of the node", c.nodes[0].health.rank(time.Now()), 0)
	heraldtest.Equal(t, "the timeouts of the node", c.nodes[0].silence.timeouts, 0)
}

// TestLargeWebsocketAnswer: a message that is too large causes ErrTooLarge, so that the follower reads the range in
// parts.
func TestLargeWebsocketAnswer(t *testing.T) {
	t.Parallel()
	var upgrader websocket.Upgrader
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heraldtest.Equal(t, "the client offers", r.Header.Get("Sec-WebSocket-Extensions"), "")
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		for answer := `{"jsonrpc":"2.0","id":1,"result":"0x1"}`; ; answer = strings.Repeat(" ", maxWebsocketAnswer+1) {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
			if err := conn.WriteMessage(websocket.TextMessage, []byte(answer)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(node.Close)
	c := newPool(t, Config{ChainID: 1, Timeout: time.Minute, URLs: []secret.Secret{secret.New("ws" + strings.TrimPrefix(node.URL, "http"))}})
	if _, err := c.ReadHead(t.Context()); !errors.Is(err, ErrTooLarge) || !IsRangeLimit(err) {
		t.Error(err)
	}
}

// FuzzLogs: logs are decoded as go-ethereum decodes them. Logs with decimal numbers are those with the same numbers in
// hex.
func FuzzLogs(f *testing.F) {
	const log = `[{"address":"0x8004a169fb4a3325136eb29fa0ceb6d2e539a432","topics":["0x6a4a61743519c9d648a14e6493f47dbe3ff1aa29e7785c96c8326a205e58febc"],` +
		`"data":"0x01","blockNumber":"0x1f","transactionHash":"0x6a4a61743519c9d648a14e6493f47dbe3ff1aa29e7785c96c8326a205e58febc","transactionIndex":"0x0","logIndex":"0x2"}]`
	f.Add([]byte(log))
	f.Add([]byte(strings.Replace(log, `"0x1f"`, `31`, 1)))
	f.Add([]byte(strings.Replace(log, `"0x2"`, `"2"`, 1)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var got Logs
		var strict, again []types.Log
		err := json.Unmarshal(raw, &got)
		refused := json.Unmarshal(raw, &strict)
		if err != nil {
			if refused == nil {
				t.Fatalf("%s is refused: %v", raw, err)
			}
			return
		}
		text, err := json.Marshal(got)
		heraldtest.Must(t, err)
		if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, []types.Log(got)) || refused == nil && !reflect.DeepEqual(strict, again) {
			t.Fatalf("%s is read as %s, %v", raw, text, err)
		}
	})
}
