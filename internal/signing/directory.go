package signing

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// Where the directory is, and what it is (draft-meunier-webbotauth-httpsig-directory).
const (
	DirectoryPath = "/.well-known/http-message-signatures-directory"
	DirectoryType = "application/http-message-signatures-directory+json"
)

// DirectoryAge is how long a verifier may keep the directory. A new key signs only after it has been published for
// longer.
const DirectoryAge = 5 * time.Minute

// jwk is a public key as the directory has it (RFC 8037).
type jwk struct {
	Type    string `json:"kty"`
	Curve   string `json:"crv"`
	ID      string `json:"kid"`
	Public  string `json:"x"`
	Use     string `json:"use"`
	Expires int64  `json:"exp,omitempty"`
}

// Directory is the public keys as a JWK set: that of the requests under way, the next one, and the last ones.
func (r *Ring) Directory() []byte {
	set := struct {
		Keys []jwk `json:"keys"`
	}{[]jwk{}}
	for _, k := range r.publishedKeys() {
		one := jwk{Type: "OKP", Curve: "Ed25519", ID: k.id, Public: base64.RawURLEncoding.EncodeToString(k.publicKey()), Use: "sig"}
		if k.retires != nil {
			one.Expires = k.retires.Unix()
		}
		set.Keys = append(set.Keys, one)
	}
	text, _ := json.Marshal(set) // texts and numbers
	return text
}

// ServeHTTP serves the directory, to everybody.
func (r *Ring) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", DirectoryType)
	h.Set("Cache-Control", "public, max-age="+strconv.Itoa(int(DirectoryAge/time.Second)))
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(r.Directory()) // the client is gone, or not
}
