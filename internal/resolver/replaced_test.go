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

// TestDocumentBeingReplaced: the agent's owner is writing a new document, and a web server sends its first part. The agent's
// deliveries do not end, because the document is read again. If that fails, they wait.
func TestDocumentBeingReplaced(t *testing.T) {
	t.Parallel()
	const uri = "https://agent.example/agent.json"
	whole := document(`"services":[{"name":"MCP","endpoint":"https://a.example/mcp"}]`)
	for _, c := range []struct {
		first, second string
		want          string
	}{
		{"", whole, "ok"},
		{whole[:40], whole, "ok"},
		{whole[:40], "", "no_document"},
		{whole[:40], "away", "unavailable"},
		{"<html>", whole, "no_document"}, // a page is no part of a document
	} {
		w := newWorld(t, resolver.Config{Binding: resolver.BindingOff})
		w.chain.set("1", uri)
		w.domains.set(uri, replaces(c.first, c.second))
		w.resolve(t, 1, 0, c.want)
	}
}

// TestListBeingReplaced: the endpoint's owner is writing a new list of agents, and a web server sends its first part. The
// agent's deliveries do not end, because the list is read again. If that fails, they wait.
func TestListBeingReplaced(t *testing.T) {
	t.Parallel()
	whole := "{" + naming(7) + "}"
	for _, c := range []struct {
		first, second string
		want          string
	}{
		{"", whole, "ok"},
		{whole[:20], whole, "ok"},
		{whole[:20], "", "unbound"},
		{whole[:20], "away", "unavailable"},
		{"<html>", whole, "unbound"}, // a page is no part of a list
	} {
		w := newWorld(t, resolver.Config{Binding: resolver.BindingRequire})
		w.chain.set("7", data(document(mcpAt)))
		w.domains.set("https://a.example", replaces(c.first, c.second))
		w.resolve(t, 7, 0, c.want)
	}
}
