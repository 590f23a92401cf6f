package signing

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/yaronf/httpsign"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/signingtest"
)

func newKeyset(t testing.TB) *secret.Keyset {
	t.Helper()
	k, err := secret.Create()
	heraldtest.Must(t, err)
	return k
}

// storedKey returns the youngest key.
func storedKey(t testing.TB, s *signingtest.Shelf) records.SigningKey {
	t.Helper()
	keys, err := s.SigningKeys(t.Context())
	heraldtest.Must(t, err)
	return keys[0]
}

// newRing returns a loaded ring with one key.
func newRing(t testing.TB, s *signingtest.Shelf, keys *secret.Keyset, clock func() time.Time) *Ring {
	t.Helper()
	r, err := New(Config{PublicURL: "https://herald.example", Records: s, Keys: keys, Clock: clock})
	heraldtest.Must(t, err)
	heraldtest.Must(t, r.Load(t.Context()))
	return r
}

func newRequest(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, content)
	heraldtest.Must(t, err)
	return req
}

// verify verifies a signature with the library and the published directory only, as a third party would.
func verify(t testing.TB, r *Ring, req *http.Request, target string) error {
	t.Helper()
	details, err := httpsign.RequestDetails(label, req)
	if err != nil {
		return err
	}
	var set struct {
		Keys []struct{ Kid, X string }
	}
	heraldtest.Must(t, json.Unmarshal(r.Directory(), &set))
	for _, k := range set.Keys {
		if k.Kid != details.KeyID {
			continue
		}
		public, err := base64.RawURLEncoding.DecodeString(k.X)
		heraldtest.Must(t, err)
		need := httpsign.Headers("@method", "@target-uri")
		need.AddDictHeader("signature-agent", label)
		verifier, err := httpsign.NewEd25519Verifier(public, httpsign.NewVerifyConfig().SetKeyID(k.Kid).SetAllowedTags([]string{tag}), need)
		heraldtest.Must(t, err)
		seen := httptest.NewRequest(req.Method, target, nil)
		seen.Header = req.Header
		return httpsign.VerifyRequest(label, *verifier, seen)
	}
	return errors.New("no such key in the directory")
}

// TestThumbprint checks the test vector of RFC 8037 A.3.
func TestThumbprint(t *testing.T) {
	t.Parallel()
	x, _ := base64.RawURLEncoding.DecodeString("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
	heraldtest.Equal(t, "thumbprint", keyThumbprint(x), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k")
}

// TestSignature checks that an independent implementation of the RFC accepts signatures for every form of URL, and
// refuses changed requests.
func TestSignature(t *testing.T) {
	t.Parallel()
	r := newRing(t, &signingtest.Shelf{}, newKeyset(t), nil)
	for url, target := range map[string]string{
		"https://agent.example/mcp":                       "https://agent.example/mcp",
		"https://agent.example":                           "https://agent.example/",
		"HTTPS://Agent.Example:443/mcp":                   "https://agent.example/mcp",
		"http://127.0.0.1:8081/a%2Fb?x=1&y":               "http://127.0.0.1:8081/a%2Fb?x=1&y",
		"https://agent.example/mcp?a;b=%20":               "https://agent.example/mcp?a;b=%20",
		"https://[2001:db8::1]:8443/mcp?session=abc#frag": "https://[2001:db8::1]:8443/mcp?session=abc",
	} {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			body := ""
			if method == http.MethodPost {
				body = `{"jsonrpc":"2.0"}`
			}
			req := newRequest(t, method, url, body)
			req.Header.Set("Mcp-Session-Id", "s1")
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer hunter2")
			if err := r.Sign(req); err != nil {
				t.Fatal(url, err)
			}
			if strings.Contains(target, ";") { // the library's verifier cannot parse such a target
				continue
			}
			if err := verify(t, r, req, target); err != nil {
				t.Errorf("%s %s: %v", method, url, err)
			}
			if verify(t, r, req, target+"x") == nil {
				t.Errorf("%s %s: taken for another address", method, url)
			}
			for _, name := range []string{"Mcp-Session-Id", "Content-Type", "Signature-Agent"} {
				changed := req.Clone(t.Context())
				changed.Header.Set(name, `sig1="https://evil.example"`)
				if verify(t, r, changed, target) == nil {
					t.Errorf("%s %s: taken with another %s", method, url, name)
				}
			}
			input := req.Header.Get("Signature-Input")
			heraldtest.Lacks(t, "input", input, "authorization")
			heraldtest.Equal(t, "content-digest", strings.Contains(input, "content-digest"), body != "")
			rest, err := io.ReadAll(orEmpty(req.Body))
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the body", string(rest), body)
		}
	}
}

func orEmpty(r io.Reader) io.Reader {
	if r == nil {
		return strings.NewReader("")
	}
	return r
}

// TestKeyRotation checks that the signing key is always in the directory, and that it was published before it signs,
// for as long as verifiers may cache an older directory.
func TestKeyRotation(t *testing.T) {
	t.Parallel()
	now := time.Now()
	clock := func() time.Time { return now }
	keys, s := newKeyset(t), &signingtest.Shelf{}
	r := newRing(t, s, keys, clock)
	first := storedKey(t, s)
	next, err := NewKey(keys)
	heraldtest.Must(t, err)
	next.ActivatesAt = now.Add(time.Hour)
	gone := now.Add(25 * time.Hour)
	first.RetiresAt = &gone
	s.Put(nil, next, first)
	for _, step := range []struct {
		after     time.Duration
		signs     string
		published int
	}{{0, first.ID, 2}, {time.Hour - 1, first.ID, 2}, {time.Hour, next.ID, 2}, {25*time.Hour - 1, next.ID, 2}, {25 * time.Hour, next.ID, 1}} {
		now = next.ActivatesAt.Add(-time.Hour).Add(step.after)
		heraldtest.Must(t, r.Load(t.Context()))
		heraldtest.Equal(t, fmt.Sprintf("after %s", step.after), r.currentKey().id, step.signs)
		if n := strings.Count(string(r.Directory()), `"kid"`); n != step.published {
			t.Errorf("after %s: %d keys", step.after, n)
		}
	}
	s.Put(errors.New("away"))
	if err := r.Load(t.Context()); err == nil {
		t.Error("nothing said")
	}
	heraldtest.Must(t, r.Sign(newRequest(t, http.MethodGet, "https://agent.example/", "")))
}

// TestForeignKeys checks that a key that cannot be decrypted does not sign, and neither does a key that was stored
// under another id.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	keys := newKeyset(t)
	good, err := NewKey(keys)
	heraldtest.Must(t, err)
	other, err := NewKey(newKeyset(t))
	heraldtest.Must(t, err)
	moved := good
	moved.ID = other.ID
	for name, k := range map[string]records.SigningKey{"another keyset's": other, "under another id": moved} {
		s := &signingtest.Shelf{}
		s.Put(nil, k)
		r, err := New(Config{PublicURL: "https://herald.example", Records: s, Keys: keys})
		heraldtest.Must(t, err)
		heraldtest.Fails(t, name, r.Load(t.Context()), ErrNoKey)
		req := newRequest(t, http.MethodGet, "https://agent.example/", "")
		if err := r.Sign(req); !errors.Is(err, ErrNoKey) || len(req.Header) > 0 {
			t.Errorf("%s: %v, %v", name, err, req.Header)
		}
		heraldtest.Equal(t, fmt.Sprintf("%s: published", name), string(r.Directory()), `{"keys":[]}`)
	}
	// If there is a valid key too, the invalid one is skipped.
	s := &signingtest.Shelf{}
	s.Put(nil, other, good)
	r, err := New(Config{PublicURL: "https://herald.example", Records: s, Keys: keys})
	heraldtest.Must(t, err)
	if err := r.Load(t.Context()); err != nil || r.currentKey().id != good.ID {
		t.Error(err)
	}
}

// TestDirectory checks that the directory is public, and contains only the public half of the key with its type and
// use.
func TestDirectory(t *testing.T) {
	t.Parallel()
	s, keys := &signingtest.Shelf{}, newKeyset(t)
	r := newRing(t, s, keys, nil)
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, DirectoryPath, nil))
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/http-message-signatures-directory+json" ||
		w.Header().Get("Cache-Control") != "public, max-age=30" {
		t.Error(w.Code, w.Header())
	}
	var set struct{ Keys []map[string]any }
	if err := json.Unmarshal(w.Body.Bytes(), &set); err != nil || len(set.Keys) != 1 {
		t.Fatal(err, w.Body)
	}
	for _, name := range []string{"kty", "crv", "kid", "x", "use"} {
		if set.Keys[0][name] == nil {
			t.Errorf("no %s", name)
		}
		delete(set.Keys[0], name)
	}
	stored := storedKey(t, s)
	seed, err := keys.Open(stored.Ciphertext, Binding(stored.ID))
	heraldtest.Must(t, err)
	for _, encoding := range []*base64.Encoding{base64.RawURLEncoding, base64.RawStdEncoding} {
		heraldtest.Lacks(t, "the published directory", w.Body.String(), encoding.EncodeToString(seed))
	}
	if len(set.Keys[0]) > 0 {
		t.Errorf("it holds %v besides", set.Keys[0])
	}
}
