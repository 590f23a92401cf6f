package chaintrial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// startNode starts an honest node with a head of 100 and four logs in every block.
func startNode(t *testing.T) string {
	t.Helper()
	n := chaintest.NewNode(t, 1)
	n.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		switch method {
		case "eth_chainId":
			return "0x7a69", nil
		case "eth_getBlockByNumber":
			return map[string]any{"number": params[0], "hash": "0xaa", "parentHash": "0xab"}, nil
		case "eth_getBlockByHash":
			if strings.Contains(string(params[0]), "dead") {
				return json.RawMessage("null"), nil
			}
			return map[string]any{"number": "0x63", "hash": params[0]}, nil
		case "eth_getLogs":
			var filter struct{ FromBlock, ToBlock hexutil.Uint64 }
			heraldtest.Must(t, json.Unmarshal(params[0], &filter))
			logs := []any{}
			for n := filter.FromBlock; n <= filter.ToBlock && n <= 100; n++ {
				for i := range 4 {
					logs = append(logs, map[string]any{"blockNumber": n, "logIndex": hexutil.Uint(i)})
				}
			}
			return logs, nil
		}
		return "0x64", nil
	})
	return n.URL
}

// ask sends a batch until the proxy has used the fault (empty: once), and returns the answer or the error.
func ask(t *testing.T, p *Proxy, fault Fault, body string) (status int, answered string, failed error) {
	t.Helper()
	s := httptest.NewServer(p)
	defer s.Close()
	client := s.Client()
	for range 1000 {
		response, err := client.Post(s.URL, "application/json", strings.NewReader(body))
		var got []byte
		if err == nil {
			got, err = io.ReadAll(response.Body)
			_ = response.Body.Close()
			status = response.StatusCode
		}
		if fault == "" || p.Counts()[fault] > 0 {
			return status, string(bytes.TrimSpace(got)), err
		}
		heraldtest.Must(t, err)
	}
	t.Fatalf("the proxy never %s", fault)
	return 0, "", nil
}

const (
	askHead = `[{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"},` +
		`{"jsonrpc":"2.0","id":2,"method":"eth_getBlockByNumber","params":["latest",false]}]`
	askFinal = `{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["finalized",false]}`
	askChain = `{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}`
)

func askLogs(from, to int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"eth_getLogs","params":`+
		`[{"fromBlock":"0x%x","toBlock":"0x%x"}]}`, from, to)
}

func TestProxyHonest(t *testing.T) {
	t.Parallel()
	node := startNode(t)
	p := NewProxy(node, 1, 64)
	for body, want := range map[string]string{
		askChain: `{"id":1,"jsonrpc":"2.0","result":"0x7a69"}`,
		askHead: `[{"id":1,"jsonrpc":"2.0","result":"0x64"},` +
			`{"id":2,"jsonrpc":"2.0","result":{"hash":"0xaa","number":"0x64","parentHash":"0xab"}}]`,
		askFinal: `{"id":1,"jsonrpc":"2.0","result":{"hash":"0xaa","number":"0x24","parentHash":"0xab"}}`,
	} {
		if _, got, err := ask(t, p, "", body); err != nil || got != want {
			t.Errorf("%s is answered %s (%v), want %s", body, got, err, want)
		}
	}
	_, got, err := ask(t, p, "", askLogs(1, 100))
	if n := strings.Count(got, "logIndex"); err != nil || n != 400 {
		t.Errorf("%d logs of 400 (%v)", n, err)
	}
	if told := p.Counts(); len(told) != 0 {
		t.Errorf("it told %v", told)
	}
}

// TestProxyLies: each fault has the effect that its name says.
func TestProxyLies(t *testing.T) {
	t.Parallel()
	node := startNode(t)
	logsOf := func(answered string) int { return strings.Count(answered, "logIndex") }
	for fault, c := range map[Fault]struct {
		body string
		lied func(status int, answered string, failed error) bool
	}{
		Errs: {askChain, func(status int, answered string, failed error) bool {
			return failed != nil || status >= 400 || strings.Contains(answered, `"error"`)
		}},
		Slow: {askChain, func(status int, _ string, failed error) bool { return status == 200 && failed == nil }},
		Cuts: {askLogs(1, 100), func(_ int, _ string, failed error) bool { return failed != nil }},
		Behind: {askHead, func(_ int, answered string, _ error) bool {
			return len(regexp.MustCompile(`"0x(5[ef]|6[0-3])"`).FindAllString(answered, -1)) == 2
		}},
		Ahead: {askHead, func(_ int, answered string, _ error) bool {
			return !strings.Contains(answered, `"0x64"`) && strings.Contains(answered, `"number":"0x6`)
		}},
		Repeats: {askLogs(1, 10), func(_ int, answered string, _ error) bool { return logsOf(answered) == 80 }},
		Forgets: {askLogs(1, 10), func(_ int, answered string, _ error) bool { return logsOf(answered) < 40 }},
		OtherChain: {askHead, func(_ int, answered string, _ error) bool {
			return strings.Contains(answered, `"0xaf"`) && !strings.Contains(answered, `"0xaa"`)
		}},
		Limits: {askLogs(1, 100), func(_ int, answered string, _ error) bool { return strings.Contains(answered, "max block range 40") }},
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				status, answered, failed := ask(t, NewProxy(node, seed, 64, fault), fault, c.body)
				if !c.lied(status, answered, failed) {
					t.Errorf("seed %d: it answered %d %s %v", seed, status, answered, failed)
				}
			}
		})
	}
	p := NewProxy(node, 1, 64, Behind)
	if _, answered, _ := ask(t, p, Behind, askLogs(100, 100)); logsOf(answered) != 0 ||
		strings.Contains(answered, "error") {
		t.Errorf("behind the head it answers %s", answered)
	}
	p.Repent()
	for range 20 {
		if _, answered, _ := ask(t, p, "", askLogs(100, 100)); logsOf(answered) != 4 {
			t.Errorf("repentant it answers %s", answered)
		}
	}
}

// TestProxyRepeats: the seed determines which request meets which fault.
func TestProxyRepeats(t *testing.T) {
	t.Parallel()
	tell := func(seed uint64) (all []lie) {
		p := NewProxy("", seed, 64, Faults...)
		for range 500 {
			all = append(all, p.next())
		}
		return all
	}
	one, two, other := fmt.Sprint(tell(4)), fmt.Sprint(tell(4)), fmt.Sprint(tell(5))
	if one != two || one == other {
		t.Errorf("the same seed is the same: %t, another one is other: %t", one == two, one != other)
	}
}

// TestProxyKnowsRemovedBlocks: a question about a block that a reorg has removed gets an error, even if the node returns
// the state of another block.
func TestProxyKnowsRemovedBlocks(t *testing.T) {
	t.Parallel()
	p := NewProxy(startNode(t), 1, 40)
	for hash, want := range map[string]string{"aaaa": `"result":"0x64"`, "dead": "header not found"} {
		body := fmt.Sprintf(`[{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"to":"0x01"},{"blockHash":"0x%064s"}]}]`, hash)
		if _, answered, err := ask(t, p, "", body); err != nil || !strings.Contains(answered, want) {
			t.Errorf("%s: %s, %v", hash, answered, err)
		}
	}
}
