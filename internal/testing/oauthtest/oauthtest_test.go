package oauthtest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

var web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// requestToken posts a form to the token endpoint, and decodes the answer if it is JSON. TestObtain of package oauth
// shows how clients with a secret are refused.
func requestToken(t *testing.T, s *oauthtest.Server, form url.Values) (int, map[string]any) {
	t.Helper()
	res, err := web.PostForm(s.Issuer+"/token", form)
	heraldtest.Must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	heraldtest.Must(t, err)
	var out map[string]any
	_ = json.Unmarshal(b, &out)
	return res.StatusCode, out
}

// TestRefresh checks that a refresh token that was rotated ends the grant when it comes again. The tests of package oauth
// show how the server refuses codes and assertions.
func TestRefresh(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t, oauthtest.Options{RotateRefresh: true})
	s.Register("us", "")
	refresh := func(token any) (int, map[string]any) {
		text, _ := token.(string)
		return requestToken(t, s, url.Values{"grant_type": {"refresh_token"}, "client_id": {"us"}, "refresh_token": {text}, "resource": {s.AgentURL}})
	}
	first := s.RefreshToken("us", "")
	status, answer := refresh(first)
	if status != 200 || answer["refresh_token"] == first {
		t.Errorf("%d %v", status, answer)
	}
	if status, _ := refresh(first); status != 400 {
		t.Errorf("rotated, again: %d", status)
	}
	if status, _ := refresh(answer["refresh_token"]); status != 400 {
		t.Errorf("after that: %d", status)
	}
	made := s.RefreshToken("us", "")
	s.Unregister("us")
	if status, answer = refresh(made); status != 401 || answer["error"] != "invalid_client" {
		t.Errorf("client forgotten: %d %v", status, answer)
	}
}
