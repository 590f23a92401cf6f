package mcpcall

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestSecretHeaders(t *testing.T) {
	t.Parallel()
	without := make(chan string, 100) // methods of the requests without the header
	a := &agent{session: "s", on: answers{"": func(q *request) {
		if q.r.Header.Get("X-Api-Key") != "very-secret-key" {
			without <- q.method
		}
		if q.method == "tools/call" {
			q.result(`{"content":[{"type":"text","text":"your key is very-secret-key"}]}`)
			return
		}
		q.pass()
	}}}
	ctx, p, ep := dial(t, a)
	ep.Headers = map[string]secret.Secret{"x-api-key": secret.New("very-secret-key")}
	answer := mustCall(t, p, ep, Request{Tool: "x"})
	heraldtest.Lacks(t, "the answer", answer.Text+string(answer.Raw), "very-secret")
	heraldtest.Must(t, p.Close(ctx))
	heraldtest.Equal(t, "DELETE requests", a.seen("DELETE"), 1)
	close(without)
	for method := range without {
		t.Errorf("%s came without the header", method)
	}

	echo := &agent{
		tools: `{"tools":[{"name":"very-secret-key"},{"name":"x","inputSchema":{"type":"object","required":["very-secret-key"]}}]}`,
		on:    answers{"initialize": results(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"very-secret-key","version":"very-secret-key"}}`)}}
	p = newPool(t)
	ep.URL = serve(t, echo).URL
	set := mustList(t, p, ep)
	if len(set.Tools) != 1 || strings.Contains(fmt.Sprintf("%+v %s", set, set.Tools[0].InputSchema), "very-secret") {
		t.Errorf("echoed: %+v", set)
	}
	if _, err := Fit(set.Tools[0], map[string]any{}); err == nil || strings.Contains(err.Error(), "very-secret") {
		t.Errorf("echoed: %v", err)
	}

	for _, name := range []string{"Mcp-Session-Id", "host", "a b", ""} {
		ep.Headers = map[string]secret.Secret{name: secret.New("v")}
		if _, err := p.Call(t.Context(), ep, Request{Tool: "x"}); !errors.As(err, new(*TransportRefusedError)) {
			t.Errorf("header %q: %v", name, err)
		}
	}
}
