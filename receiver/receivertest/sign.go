package receivertest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// NewHerald returns a Herald that signs its requests with a key of its own (RFC 9421), and publishes the key at its
// URL, on loopback, until Close.
func NewHerald() (*Herald, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	x := base64.RawURLEncoding.EncodeToString(public)
	thumbprint := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + x + `"}`))
	id := base64.RawURLEncoding.EncodeToString(thumbprint[:])
	s := &signer{url: "http://" + listener.Addr().String(), private: private, id: id}
	directory, err := json.Marshal(map[string]any{"keys": []map[string]string{
		{"kty": "OKP", "crv": "Ed25519", "kid": s.id, "x": x, "use": "sig"}}})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/http-message-signatures-directory", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(directory)
	})
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	s.serving.Go(func() { _ = s.server.Serve(listener) })
	return &Herald{URL: s.url, signer: s}, nil
}

// Close stops publishing the key.
func (h *Herald) Close() {
	if h.signer != nil {
		_ = h.signer.server.Close()
		h.signer.serving.Wait()
	}
}

// Sign signs a request by adding to its header. It reads the body and replaces it by a copy.
func (h *Herald) Sign(r *http.Request) error {
	if h.signer == nil {
		return errors.New("this Herald has no key: use NewHerald")
	}
	return h.signer.sign(r)
}

// signer signs requests before it sends them.
type signer struct {
	url, id string
	private ed25519.PrivateKey
	server  *http.Server
	serving sync.WaitGroup
}

// RoundTrip signs a copy of the request and sends it.
func (s *signer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if err := s.sign(r); err != nil {
		return nil, err
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (s *signer) sign(r *http.Request) error {
	var lines, covered []string
	cover := func(name, value string) {
		lines, covered = append(lines, name+": "+value), append(covered, name)
	}
	cover(`"@method"`, r.Method)
	cover(`"@target-uri"`, r.URL.Scheme+"://"+r.URL.Host+r.URL.RequestURI())
	if r.Body != nil && r.Body != http.NoBody {
		body, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		sum := sha256.Sum256(body)
		r.Header.Set("Content-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
	}
	var names []string
	for name := range r.Header {
		lower := strings.ToLower(name)
		if lower == "content-type" || lower == "content-digest" || strings.HasPrefix(lower, "mcp-") {
			names = append(names, lower)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		cover(`"`+name+`"`, strings.Join(r.Header.Values(name), ", "))
	}
	cover(`"signature-agent";key="sig1"`, `"`+s.url+`"`)
	now := time.Now().Unix()
	parameters := fmt.Sprintf(`(%s);created=%d;expires=%d;nonce="%s";alg="ed25519";tag="web-bot-auth";keyid="%s"`,
		strings.Join(covered, " "), now, now+300, rand.Text(), s.id)
	base := strings.Join(append(lines, `"@signature-params": `+parameters), "\n")
	r.Header.Set("Signature-Agent", `sig1="`+s.url+`"`)
	r.Header.Set("Signature-Input", "sig1="+parameters)
	r.Header.Set("Signature", "sig1=:"+base64.StdEncoding.EncodeToString(ed25519.Sign(s.private, []byte(base)))+":")
	return nil
}
