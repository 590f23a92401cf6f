package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestEras(t *testing.T) {
	t.Parallel()
	ok := `{"content":[{"type":"text","text":"ok"}]}`
	discover := `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}`
	for _, tt := range []struct {
		name, hint, protocol string
		on                   func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool
		handshakes           int // discover + initialize
		fails                bool
		silent               bool // does not answer server/discover
	}{
		{name: "legacy, no hint", protocol: legacyVersion, handshakes: 1},
		{name: "legacy, called modern", hint: modernVersion, protocol: legacyVersion, handshakes: 2},
		{name: "legacy, answers {} to everything", hint: modernVersion, protocol: legacyVersion, handshakes: 2,
			on: onMethod("server/discover", func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
				reply(w, id, `{}`)
			})},
		{name: "legacy, silent on discover", hint: modernVersion, protocol: legacyVersion, handshakes: 2, silent: true,
			on: onMethod("server/discover", func(_ http.ResponseWriter, r *http.Request, _ json.RawMessage) {
				<-r.Context().Done()
			})},
		{name: "legacy, 400 without session", hint: modernVersion, protocol: legacyVersion, handshakes: 2,
			on: onMethod("server/discover", func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) {
				w.WriteHeader(400)
			})},
		{name: "modern, no hint", protocol: modernVersion, handshakes: 2,
			on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
				switch method {
				case "initialize":
					w.WriteHeader(404)
					fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, id)
				case "server/discover":
					reply(w, id, discover)
				case "tools/call":
					reply(w, id, ok)
				}
				return true
			}},
		{name: "neither", handshakes: 2, fails: true, on: func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			w.WriteHeader(400)
			return true
		}},
		{name: "busy", hint: modernVersion, handshakes: 1, fails: true, on: func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			w.WriteHeader(503)
			return true
		}},
		{name: "unauthorized", handshakes: 1, fails: true, on: func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			w.WriteHeader(401)
			return true
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := &agent{on: tt.on}
			srv := httptest.NewServer(a)
			defer srv.Close()
			p := newPool(t, func(c *Config) {
				c.ProbeTimeout = 5 * time.Second
				if tt.silent {
					c.ProbeTimeout = 2 * time.Second // longer than a busy machine needs to connect and write the request
				}
			})
			ctx := heraldtest.Within(t, 30*time.Second)
			for range 2 {
				answer, err := p.Call(ctx, Endpoint{Transport: TransportHTTP, URL: srv.URL, ProtocolHint: tt.hint}, Request{Tool: "x"})
				if tt.fails {
					if e, ok := errors.AsType[*CallError](err); !ok || e.Stage != StageOpen || e.Status == 0 {
						t.Fatalf("got %#v", err)
					}
					break
				}
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the protocol", answer.Protocol, tt.protocol)
			}
			heraldtest.Equal(t, "handshakes", a.seen("initialize")+a.seen("server/discover"), tt.handshakes)
		})
	}
}

// TestEraChanges checks that an agent that returns to software of the older era is detected by its next refusal.
func TestEraChanges(t *testing.T) {
	t.Parallel()
	var old atomic.Bool
	a := &agent{on: func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		modern := r.Header.Get("Mcp-Protocol-Version") == modernVersion
		switch {
		case modern && old.Load():
			w.WriteHeader(http.StatusBadRequest)
			return true
		case method == "server/discover":
			reply(w, id, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}`)
			return true
		}
		return false
	}}
	_, p, ep := dial(t, a)
	ep.ProtocolHint = modernVersion
	for _, want := range []string{modernVersion, legacyVersion, legacyVersion} {
		heraldtest.Equal(t, "the protocol", mustCall(t, p, ep, Request{Tool: "x"}).Protocol, want)
		old.Store(true)
	}
	heraldtest.Equal(t, "server/discover requests", a.seen("server/discover"), 2)
}
