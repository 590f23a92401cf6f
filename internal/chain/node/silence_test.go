package node

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSilentNode: a node that answers nothing gets only an occasional probe request, so that its chain's deliveries do
// not hold slots of other chains. Once it answers, all requests are sent again.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	var well atomic.Bool
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if well.Load() {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":"0x7a69"}`))
			return
		}
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client disconnects
		<-r.Context().Done()
	}))
	t.Cleanup(node.Close)
	c, err := New(Config{ChainID: 31337, URLs: []secret.Secret{secret.New(node.URL)}, Timeout: 100 * time.Millisecond})
	heraldtest.Must(t, err)
	t.Cleanup(c.Close)
	c.nodes[0].silence.quiet = time.Hour
	ask := func() error {
		var id string
		return c.SendCall(t.Context(), "asking", &id, "eth_chainId")
	}
	for range maxTimeouts {
		if err := ask(); errors.Is(err, errSilent) {
			t.Errorf("it was not asked: %v", err)
		}
	}
	had := asked.Load()
	if had == 0 {
		t.Fatal("the node was never asked")
	}
	for range 20 {
		if err := ask(); !errors.Is(err, errSilent) || !as[*UnavailableError](err) || !strings.Contains(err.Error(), "RPC_URL_31337") {
			t.Errorf("%v", err)
		}
	}
	if n := asked.Load(); n != had {
		t.Errorf("the silent node was asked %d times more", n-had)
	}

	c.nodes[0].silence.mu.Lock()
	c.nodes[0].silence.until = time.Time{}
	c.nodes[0].silence.mu.Unlock()
	var tried sync.WaitGroup
	var probes atomic.Int64
	for range 8 {
		tried.Go(func() {
			if err := ask(); !errors.Is(err, errSilent) {
				probes.Add(1)
			}
		})
	}
	tried.Wait()
	heraldtest.Equal(t, "requests tried", probes.Load(), 1)

	well.Store(true)
	c.timeout = time.Minute // enough for a successful answer
	heraldtest.Must(t, c.Ping(t.Context()))
	heraldtest.Must(t, ask())
}

// TestCancelledRequestIsNoSilence: neither a cancelled caller nor a request that fails at once counts as silence of the
// node.
func TestCancelledRequestIsNoSilence(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s := silence{quiet: time.Hour}
	for range 2 * maxTimeouts {
		s.noteOutcome(gone, errors.New("canceled"))
		s.noteOutcome(t.Context(), errors.New("connection refused"))
	}
	heraldtest.Must(t, s.beginRequest(time.Now(), time.Second))
}

// TestOneProbe: while a probe may be on its way, no other request is sent to a silent node, even if the probe was
// cancelled.
func TestOneProbe(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s, now := silence{quiet: time.Hour, timeouts: maxTimeouts}, time.Now()
	heraldtest.Must(t, s.beginRequest(now, time.Minute))
	heraldtest.Equal(t, "a cancelled probe says anything", s.noteOutcome(gone, errors.New("canceled")), false)
	heraldtest.Fails(t, "another probe", s.beginRequest(now.Add(time.Hour), time.Minute), errSilent)
	heraldtest.Must(t, s.beginRequest(now.Add(time.Hour+time.Minute), time.Minute))
}
