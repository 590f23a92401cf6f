package mcpcall

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestEras(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, hint, protocol string
		on                   answers
		handshakes           int  // discover + initialize
		silent               bool // does not answer server/discover
	}{
		{name: "legacy, no hint", protocol: legacyVersion, handshakes: 1},
		{name: "legacy, called modern", hint: modernVersion, protocol: legacyVersion, handshakes: 2},
		{name: "legacy, answers {} to everything", hint: modernVersion, protocol: legacyVersion, handshakes: 2,
			on: answers{"server/discover": results(`{}`)}},
		{name: "legacy, silent on discover", hint: modernVersion, protocol: legacyVersion, handshakes: 2, silent: true,
			on: answers{"server/discover": (*request).hang}},
		{name: "legacy, 400 without session", hint: modernVersion, protocol: legacyVersion, handshakes: 2,
			on: answers{"server/discover": statuses(400, "")}},
		{name: "modern, no hint", protocol: modernVersion, handshakes: 2,
			on: answers{"initialize": func(q *request) { q.refuse(404, -32601, "no such method") }}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := &agent{on: tt.on, modern: tt.protocol == modernVersion}
			_, p, ep := dial(t, a, func(c *Config) {
				c.ProbeTimeout = 5 * time.Second
				if tt.silent {
					c.ProbeTimeout = 2 * time.Second // longer than a busy machine needs to connect and write the request
				}
			})
			ep.ProtocolHint = tt.hint
			for range 2 {
				heraldtest.Equal(t, "the protocol", mustCall(t, p, ep, Request{Tool: "x"}).Protocol, tt.protocol)
			}
			heraldtest.Equal(t, "handshakes", a.seen("initialize")+a.seen("server/discover"), tt.handshakes)
		})
	}
}

// TestEraChanges checks that an agent that returns to software of the older era is detected by its next refusal.
func TestEraChanges(t *testing.T) {
	t.Parallel()
	var old atomic.Bool
	refuseModern := func(q *request) {
		if old.Load() && q.r.Header.Get("Mcp-Protocol-Version") == modernVersion {
			q.status(http.StatusBadRequest, "")
			return
		}
		q.pass()
	}
	a := modern(answers{"": refuseModern})
	_, p, ep := dial(t, a)
	ep.ProtocolHint = modernVersion
	for _, want := range []string{modernVersion, legacyVersion, legacyVersion} {
		heraldtest.Equal(t, "the protocol", mustCall(t, p, ep, Request{Tool: "x"}).Protocol, want)
		old.Store(true)
	}
	heraldtest.Equal(t, "server/discover requests", a.seen("server/discover"), 2)
}

// TestOlderVersion checks that an agent that answers initialize with the error of the MCP specification's example
// (Lifecycle, Error Handling) is called in the newest revision that the error lists, and that the request is not
// repeated if the list does not help.
func TestOlderVersion(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status    int
		supported string
		requested []string
		protocol  string // "": the handshake fails
	}{
		"older ones":          {200, `["2024-11-05","2025-03-26"]`, []string{legacyVersion, "2025-03-26"}, "2025-03-26"},
		"older ones with 400": {400, `["2024-11-05"]`, []string{legacyVersion, "2024-11-05"}, "2024-11-05"},
		"the requested one":   {200, `["2025-11-25"]`, []string{legacyVersion}, ""},
		"an unknown one":      {200, `["1.0.0", 7]`, []string{legacyVersion}, ""},
		"no list":             {200, `{}`, []string{legacyVersion}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var requested []string
			a := &agent{on: answers{"initialize": func(q *request) {
				var params struct{ ProtocolVersion string }
				heraldtest.Must(t, json.Unmarshal(q.params, &params))
				mu.Lock()
				requested = append(requested, params.ProtocolVersion)
				mu.Unlock()
				if tt.protocol != "" && params.ProtocolVersion == tt.protocol {
					q.result(`{"protocolVersion":"` + tt.protocol + `","capabilities":{"tools":{}},"serverInfo":{"name":"old","version":"0"}}`)
					return
				}
				q.respond(tt.status, `"error":{"code":-32602,"message":"Unsupported protocol version","data":{"supported":`+tt.supported+`}}`)
			}}}
			answer, err := callHinted(t, a, "")
			if (err == nil) != (tt.protocol != "") || answer.Protocol != tt.protocol {
				t.Errorf("protocol %q, %v", answer.Protocol, err)
			}
			mu.Lock()
			defer mu.Unlock()
			heraldtest.Equal(t, "requested revisions", requested, tt.requested)
		})
	}
}
