package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAsk(t *testing.T) {
	t.Parallel()
	status := http.StatusServiceUnavailable
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		http.Error(w, `{"for": {"postgres": "away"}}`, status)
	}))
	defer s.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	for _, listen := range []string{"127.0.0.1:" + port, "0.0.0.0:" + port, ":" + port} {
		status = http.StatusServiceUnavailable
		if err := ask(listen); err == nil || !strings.Contains(err.Error(), "postgres") {
			t.Errorf("%s: 503 gave %v", listen, err)
		}
		status = http.StatusOK
		if err := ask(listen); err != nil {
			t.Errorf("%s: 200 gave %v", listen, err)
		}
	}
	if err := ask("8080"); err == nil {
		t.Error("a port alone is no address")
	}
}
