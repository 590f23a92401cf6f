package signing

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// Path and media type of the directory (draft-meunier-webbotauth-httpsig-directory).
const (
	DirectoryPath = "/.well-known/http-message-signatures-directory"
	DirectoryType = "application/http-message-signatures-directory+json"
)

// DirectoryAge is how long a proxy may cache the directory. A new key can sign a minute after it was stored, and
// workers publish it up to Config.Refresh (30 s) later.
const DirectoryAge = 30 * time.Second

// jwk is a public key in the directory (RFC 8037).
type jwk struct {
	Type    string `json:"kty"`
	Curve   string `json:"crv"`
	ID      string `json:"kid"`
	Public  string `json:"x"`
	Use     string `json:"use"`
	Expires int64  `json:"exp,omitempty"`
}

// Directory returns the public keys as a JWK set: the current key, the next one, and earlier ones that have not
// retired.
func (r *Ring) Directory() []byte {
	set := struct {
		Keys []jwk `json:"keys"`
	}{[]jwk{}}
	for _, k := range r.publishedKeys() {
		one := jwk{Type: "OKP", Curve: "Ed25519", ID: k.id,
			Public: base64.RawURLEncoding.EncodeToString(k.publicKey()), Use: "sig"}
		if k.retires != nil {
			one.Expires = k.retires.Unix()
		}
		set.Keys = append(set.Keys, one)
	}
	text, _ := json.Marshal(set) // cannot fail for strings and numbers
	return text
}

// ServeHTTP serves the directory without authentication.
func (r *Ring) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", DirectoryType)
	h.Set("Cache-Control", "public, max-age="+strconv.Itoa(int(DirectoryAge/time.Second)))
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(r.Directory()) // a write error means that the client closed the connection
}
