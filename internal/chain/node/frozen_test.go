package node

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFrozenConnection: a connection to a node stays open, but the node does not answer on it. A new one reaches it. The
// pool opens it after three timeouts.
func TestFrozenConnection(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*testing.T, *atomic.Bool) (string, *tls.Config){
		"websocket": serveFreezingWebsocket, "HTTP/2": serveFreezingHTTP2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var frozen atomic.Bool
			address, trust := serve(t, &frozen)
			c := newPool(t, Config{ChainID: 1, URLs: []secret.Secret{secret.New(address)}, Timeout: 300 * time.Millisecond})
			n := c.nodes[0]
			n.transport.TLSClientConfig, n.silence.quiet = trust, 50*time.Millisecond
			n.transport.TLSHandshakeTimeout, n.transport.ResponseHeaderTimeout = 0, 0
			_, err := c.ReadHead(t.Context())
			heraldtest.Must(t, err)
			frozen.Store(true)
			for range maxTimeouts {
				if _, err := c.ReadHead(t.Context()); err == nil {
					t.Error("a frozen connection answered")
				}
			}
			c.timeout = 10 * time.Second // this machine may be busy
			heraldtest.Await(t, "the answer to the first probe", func() bool {
				_, err := c.ReadHead(t.Context())
				if err != nil && !errors.Is(err, errSilent) {
					t.Fatal(err)
				}
				return err == nil
			})
		})
	}
}

// serveFreezingWebsocket starts a node whose first connection answers only pings while frozen is set.
func serveFreezingWebsocket(t *testing.T, frozen *atomic.Bool) (string, *tls.Config) {
	node, upgrader := &chaintest.Script{Head: 9, HeadAt: time.Now()}, websocket.Upgrader{}
	var connections atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		for isFirst := connections.Add(1) == 1; ; {
			_, asked, err := conn.ReadMessage()
			if err != nil {
				return
			}
			if isFirst && frozen.Load() {
				continue
			}
			answer := httptest.NewRecorder()
			node.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(asked))))
			if err := conn.WriteMessage(websocket.TextMessage, answer.Body.Bytes()); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http"), nil
}

// serveFreezingHTTP2 starts a node behind a router that forgets the first connection while frozen is set.
func serveFreezingHTTP2(t *testing.T, frozen *atomic.Bool) (string, *tls.Config) {
	server := httptest.NewUnstartedServer(&chaintest.Script{Head: 9, HeadAt: time.Now()})
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	router, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = router.Close() })
	go func() {
		for isFirst := true; ; isFirst = false {
			client, err := router.Accept()
			if err != nil {
				return
			}
			node, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
			if err != nil {
				return
			}
			t.Cleanup(func() { _, _ = client.Close(), node.Close() })
			forward := func(to io.Writer, from io.Reader) {
				for buffer := make([]byte, 1<<16); ; {
					n, err := from.Read(buffer)
					if err != nil {
						return
					}
					if isFirst && frozen.Load() {
						continue
					}
					if _, err := to.Write(buffer[:n]); err != nil {
						return
					}
				}
			}
			go forward(client, node)
			go forward(node, client)
		}
	}()
	trust := server.Client().Transport.(*http.Transport).TLSClientConfig
	return "https://" + router.Addr().String(), trust
}
