package callers

import (
	"testing"
	"time"
)

// FuzzParseKeys checks that any directory yields only keys whose id is their own thumbprint.
func FuzzParseKeys(f *testing.F) {
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA"},null]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseKeys(text)
		if len(keys) > directoryKeys || err != nil && keys != nil {
			t.Error(len(keys), err)
		}
		for id, k := range keys {
			if len(k) != 32 || len(id) != 43 {
				t.Error(id, k)
			}
		}
	})
}

// TestNoncesExpire checks that a nonce is forgotten when its signature has expired.
func TestNoncesExpire(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v, err := New(Config{Herald: "https://herald.example", Self: "https://agent.example", Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	for i, nonce := range []string{"a", "b", "a"} {
		if v.remember(nonce, now.Add(skew)) != (i < 2) {
			t.Errorf("nonce %d", i)
		}
	}
	now = now.Add(2 * skew)
	if v.remember("c", now.Add(skew)); len(v.seen) != 1 {
		t.Errorf("%d nonces are remembered", len(v.seen))
	}
}
