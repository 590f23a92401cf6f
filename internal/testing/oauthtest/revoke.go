package oauthtest

import (
	"net/url"
	"slices"
)

// revokeToken implements RFC 7009. It revokes a token of the calling client; revoking a refresh token revokes all
// tokens of its login. Revoking an unknown token succeeds. The hint is ignored, because both kinds are searched.
func (s *Server) revokeToken(form url.Values, id string) (map[string]any, error) {
	text := form.Get("token")
	refresh := s.refresh[text]
	i := slices.IndexFunc(s.tokens, func(t *token) bool { return t.text == text })
	switch {
	case text == "":
		return nil, refusal{"invalid_request", "there is no token"}
	case refresh != nil && refresh.client != id, i >= 0 && s.tokens[i].client != id:
		return nil, refusal{"invalid_grant", "the token is another client's"}
	case i >= 0 && s.o.RefreshOnly:
		return nil, refusal{"unsupported_token_type", "access tokens end by themselves"}
	case i >= 0:
		s.tokens[i].revoked = true
	case refresh != nil:
		refresh.whole.ended = true
		for _, t := range s.tokens {
			t.revoked = t.revoked || t.whole == refresh.whole
		}
	}
	return nil, nil
}
