package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
)

// flaky is a proxy before an agent. It answers the first two tool calls with 503, the second one with Retry-After: 15.
type flaky struct {
	url   string // MCP endpoint of this proxy
	proxy *httputil.ReverseProxy
	calls atomic.Int32
}

func newFlaky(agent string) *flaky {
	target, err := url.Parse(agent)
	if err != nil {
		target = &url.URL{}
	}
	return &flaky{proxy: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
	}}}
}

// ServeHTTP implements http.Handler.
func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var request struct {
		Method string `json:"method"`
	}
	if json.Unmarshal(body, &request) == nil && request.Method == "tools/call" {
		switch f.calls.Add(1) {
		case 1:
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		case 2:
			w.Header().Set("Retry-After", "15")
			http.Error(w, "not for a while", http.StatusServiceUnavailable)
			return
		}
	}
	f.proxy.ServeHTTP(w, r)
}
