package callers

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// ErrNoKeys reports that the directory of keys could not be fetched.
var ErrNoKeys = errors.New("the directory of keys cannot be fetched")

const (
	directoryPath  = "/.well-known/http-message-signatures-directory"
	directoryBytes = 64 << 10
	directoryKeys  = 32
	fetchTime      = 5 * time.Second
	keysAge        = 5 * time.Minute  // after it, a key that is no longer published is refused
	fetchPause     = 10 * time.Second // minimum interval between two fetches, because anyone can send unknown key ids
)

// directory caches the keys that Herald publishes.
type directory struct {
	url    string
	client *http.Client
	now    func() time.Time

	mu      sync.Mutex // held during a fetch, so that one fetch serves all callers
	keys    map[string]ed25519.PublicKey
	fetched time.Time // time of the last successful fetch
	tried   time.Time
}

func newDirectory(herald string, client *http.Client, now func() time.Time) *directory {
	if client == nil {
		client = &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return &directory{url: herald + directoryPath, client: client, now: now}
}

// find returns the key with this id. It fetches the directory for an unknown key and for outdated keys, but at most
// once per fetchPause. If the fetch fails, known keys remain valid.
func (d *directory) find(ctx context.Context, id string) (ed25519.PublicKey, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	key, known := d.keys[id]
	if (!known || now.Sub(d.fetched) > keysAge) && (d.tried.IsZero() || now.Sub(d.tried) >= fetchPause) {
		d.tried = now
		keys, err := d.fetch(context.WithoutCancel(ctx)) // other callers wait for it too
		if err == nil {
			d.keys, d.fetched = keys, now
		}
		key, known = d.keys[id]
	}
	switch {
	case known:
		return key, nil
	case d.fetched.Before(d.tried): // the key may be new
		return nil, ErrNoKeys
	}
	return nil, errors.New("it is signed with another's key")
}

// fetch downloads the directory of keys.
func (d *directory) fetch(ctx context.Context) (map[string]ed25519.PublicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return nil, err
	}
	res, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d", d.url, res.StatusCode)
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, res.Body, directoryBytes))
	if err != nil {
		return nil, err
	}
	return parseKeys(text)
}

// parseKeys parses the Ed25519 keys of a JWK set. Their ids are their thumbprints, not the ids in the set.
func parseKeys(text []byte) (map[string]ed25519.PublicKey, error) {
	var set struct {
		Keys []struct{ Kty, Crv, X string }
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, err
	}
	keys := map[string]ed25519.PublicKey{}
	for _, k := range set.Keys[:min(len(set.Keys), directoryKeys)] {
		public, err := base64.RawURLEncoding.DecodeString(k.X)
		if k.Kty != "OKP" || k.Crv != "Ed25519" || err != nil || len(public) != ed25519.PublicKeySize {
			continue
		}
		sum := sha256.Sum256([]byte(
			`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}`))
		keys[base64.RawURLEncoding.EncodeToString(sum[:])] = public
	}
	return keys, nil
}
