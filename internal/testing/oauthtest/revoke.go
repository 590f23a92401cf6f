package oauthtest

import (
	"net/http"
	"net/url"
	"slices"
)

// serveRevoke implements RFC 7009. It revokes a token of the calling client; revoking a refresh token revokes all
// tokens of its login. Revoking an unknown token succeeds. The hint is ignored, because both kinds are searched.
func (s *Server) serveRevoke(w http.ResponseWriter, r *http.Request, form url.Values) {
	if !checkForm(w, r, form) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.identifyClient(w, r, form)
	if !ok {
		return
	}
	text := form.Get("token")
	if text == "" {
		writeError(w, http.StatusBadRequest, "invalid_request", "there is no token")
		return
	}
	refresh := s.refresh[text]
	i := slices.IndexFunc(s.tokens, func(t *token) bool { return t.text == text })
	switch {
	case refresh != nil && refresh.client != id, i >= 0 && s.tokens[i].client != id:
		writeError(w, http.StatusBadRequest, "invalid_grant", "the token is another client's")
		return
	case i >= 0 && s.o.RefreshOnly:
		writeError(w, http.StatusBadRequest, "unsupported_token_type", "access tokens end by themselves")
		return
	case i >= 0:
		s.tokens[i].revoked = true
	case refresh != nil:
		refresh.whole.ended = true
		for _, t := range s.tokens {
			t.revoked = t.revoked || t.whole == refresh.whole
		}
	}
	w.WriteHeader(http.StatusOK)
}
