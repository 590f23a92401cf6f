package oauthtest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// Tool is the agent's only tool. It accepts any arguments.
const Tool = "agent.receiveFeedback"

type tokenKey struct{}

// newAgent creates the agent.
func (s *Server) newAgent() {
	agent := server.NewMCPServer("oauthtest", "1", server.WithToolCapabilities(false))
	agent.AddTool(mcp.NewToolWithRawSchema(Tool, "takes feedback", []byte(`{"type":"object"}`)), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		token, _ := ctx.Value(tokenKey{}).(string)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, Call{Token: token})
		return mcp.NewToolResultText(`{"acknowledged":true}`), nil
	})
	s.mcp = server.NewStreamableHTTPServer(agent)
}

// serveAgent handles the agent's requests: the document that names its authorization servers, and the protected tool.
func (s *Server) serveAgent(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && !s.o.Legacy && r.URL.Path == s.metadataPath():
		writeJSON(w, http.StatusOK, s.describeResource())
	case r.URL.Path != s.o.Path:
		http.NotFound(w, r)
	default:
		s.serveTool(w, r)
	}
}

// metadataPath returns the path of RFC 9728 §3.1.
func (s *Server) metadataPath() string {
	if s.o.RootMetadata {
		return resourceMetadata
	}
	return resourceMetadata + s.o.Path
}

func (s *Server) describeResource() map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := map[string]any{"resource": s.AgentURL, "authorization_servers": s.issuers, "bearer_methods_supported": []string{"header"}}
	if s.o.Scopes != nil {
		// offline_access concerns only client and authorization server; it is not a scope of a resource.
		m["scopes_supported"] = slices.DeleteFunc(slices.Clone(s.o.Scopes), func(one string) bool { return one == "offline_access" })
	}
	return m
}

// serveTool serves requests with a valid token, and answers others with a challenge.
func (s *Server) serveTool(w http.ResponseWriter, r *http.Request) {
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	s.mu.Lock()
	i := slices.IndexFunc(s.tokens, func(t *token) bool { return t.text == text })
	valid := strings.EqualFold(scheme, "Bearer") && i >= 0 && !s.tokens[i].revoked && s.o.Now().Before(s.tokens[i].expires)
	s.mu.Unlock()
	switch {
	case !valid && text == "":
		s.writeChallenge(w, "")
	case !valid:
		s.writeChallenge(w, "invalid_token")
	default:
		s.mcp.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, text)))
	}
}

// writeChallenge answers 401 with a challenge according to RFC 6750 §3 and RFC 9728 §5.1.
func (s *Server) writeChallenge(w http.ResponseWriter, code string) {
	resource := ""
	if !s.o.NoChallenge && !s.o.Legacy {
		resource = s.agent.URL + s.metadataPath()
	}
	var parts []string
	for _, p := range [][2]string{{"error", code}, {"scope", s.o.ChallengeScope}, {"resource_metadata", resource}} {
		if p[1] != "" {
			parts = append(parts, fmt.Sprintf(`%s="%s"`, p[0], p[1]))
		}
	}
	w.Header().Set("WWW-Authenticate", strings.TrimSpace("Bearer "+strings.Join(parts, ", ")))
	http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
}
