package chain

import (
	"encoding/json"
	"math/big"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAgentIsReadAfterItsEvent: several nodes answer at one address. The node that shows the event has the agent. Another
// one lags and does not have it yet: the agent is then read from another address, or later.
func TestAgentIsReadAfterItsEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.Feedback()
	laggard := devnettest.Start(t, devnet.Config{})
	var lags atomic.Bool
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		target := w.Net.URL()
		if lags.Load() {
			target = laggard.URL()
		}
		u, err := url.Parse(target)
		if err != nil {
			t.Error(err)
			return
		}
		r.SetURL(u)
	}})
	t.Cleanup(server.Close)
	for nodes, urls := range map[string][]string{"one address": {server.URL}, "two": {server.URL, w.Net.URL()}} {
		lags.Store(false)
		c := w.newClient(Config{}, urls...)
		if s, err := c.Check(w.Ctx, j, VerifyReceipt); err != nil || !s.Confirmed {
			t.Fatalf("%s: %+v, %v", nodes, s, err)
		}
		lags.Store(true)
		uri, err := c.TokenURI(w.Ctx, j.IdentityRegistry, w.Agent)
		if len(urls) == 1 {
			heraldtest.Fails(t, nodes, err, node.ErrOutdated)
		} else if err != nil || uri == "" {
			t.Errorf("%s: %q, %v", nodes, uri, err)
		}
		lags.Store(false)
		if uri, err := c.TokenURI(w.Ctx, j.IdentityRegistry, w.Agent); err != nil || uri == "" {
			t.Errorf("%s, without the laggard: %q, %v", nodes, uri, err)
		}
		if _, err := c.TokenURI(w.Ctx, j.IdentityRegistry, big.NewInt(99)); !as[*NoSuchAgentError](err) {
			t.Errorf("%s, an agent that does not exist: %v", nodes, err)
		}
	}
}

// TestCheckLeavesStuckNode: the first node answers, but its newest block is ten minutes old. A worker that follows no
// chain checks events with the second node soon.
func TestCheckLeavesStuckNode(t *testing.T) {
	t.Parallel()
	const pace = 200 * time.Millisecond
	var urls []secret.Secret
	_, j := pacedLog(t, 8453, pace, 20*time.Second)
	j.BlockNumber = pacedHead - 100
	for _, late := range []time.Duration{10 * time.Minute, 0} {
		server, _ := pacedLog(t, 8453, pace, 20*time.Second)
		server.Head, server.HeadAt = pacedHead-uint64(late/pace), server.HeadAt.Add(-late)
		urls = append(urls, secret.New(server.Serve(t)))
	}
	c := newClient(t, node.Config{ChainID: 8453, URLs: urls}, Config{Registries: chaintest.ScriptedRegistries().Registries()})
	if s, err := c.Check(t.Context(), j, VerifyReceipt); err != nil || !s.Pending {
		t.Errorf("the first check: %+v, %v", s, err)
	}
	if s, err := c.Check(t.Context(), j, VerifyReceipt); !isFound(s, err) {
		t.Errorf("the second check: %+v, %v", s, err)
	}
}

// TestCheckAsksAllNodesForReceipt: the first node has dropped the receipt of an old transaction. Herald asks the others
// for it. The event counts as missing only if all nodes answered and none has the receipt.
func TestCheckAsksAllNodesForReceipt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.Feedback()
	pruned := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		if strings.HasPrefix(q.Method, "eth_getTransaction") {
			return json.RawMessage("null")
		}
		return result
	})
	unreadable := chaintest.Bend(t, w.Net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		if q.Method == "eth_getTransactionReceipt" {
			return json.RawMessage(`"an error"`)
		}
		return result
	})
	waits := func(_ Standing, err error) bool { return as[*node.UnavailableError](err) }
	for name, c := range map[string]struct {
		others []string
		want   func(Standing, error) bool
	}{
		"the second has it":             {[]string{w.Net.URL()}, isFound},
		"the second lacks it":           {[]string{pruned}, isRefused("transactionHash")},
		"the second is silent":          {[]string{"http://127.0.0.1:1"}, waits},
		"the second fails, third lacks": {[]string{unreadable, pruned}, waits},
	} {
		client := w.newClient(Config{}, append([]string{pruned}, c.others...)...)
		if s, err := client.Check(w.Ctx, j, VerifyReceipt); !c.want(s, err) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}
