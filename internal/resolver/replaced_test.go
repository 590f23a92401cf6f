package resolver_test

import (
	"context"
	"testing"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/resolver"
)

// replaces is a server that answers its first request with one text, and later ones with another. It answers 503 instead
// of the text "away".
func replaces(first, second string) domain {
	next := first
	return func(ctx context.Context) (ipfs.Document, error) {
		sent := next
		next = second
		if sent == "away" {
			return fails(&ipfs.UnavailableError{URI: "x", Status: 503, Err: errAway})(ctx)
		}
		return lists(sent)(ctx)
	}
}

// TestBeingReplaced: a new document of the agent, or a new list of agents, is being written, and a web server sends its
// first part. The agent's deliveries do not end, because the text is read again. If that fails, they wait. A page is no
// part of a document or list.
func TestBeingReplaced(t *testing.T) {
	t.Parallel()
	const uri, origin = "https://agent.example/agent.json", "https://a.example"
	for _, tt := range []struct {
		whole, policy, tokenURI, at, ends string
	}{
		{document(mcpAt), resolver.BindingOff, uri, uri, "no_document"},
		{"{" + naming(7) + "}", resolver.BindingRequire, data(document(mcpAt)), origin, "unbound"},
	} {
		part := tt.whole[:20]
		for _, c := range [][3]string{{"", tt.whole, "ok"}, {part, tt.whole, "ok"}, {part, "", tt.ends},
			{part, "away", "unavailable"}, {"<html>", tt.whole, tt.ends}} {
			w := newWorld(t, resolver.Config{Binding: tt.policy})
			w.chain.set("7", tt.tokenURI)
			w.domains.set(tt.at, replaces(c[0], c[1]))
			w.resolve(t, 7, 0, c[2])
		}
	}
}
