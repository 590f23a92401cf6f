package secret

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/signature"
	"golang.org/x/sys/unix"
)

var full = Binding{Purpose: "token.v1", ChainID: 8453, Registry: "0xAbC", AgentID: "42", Origin: "https://a.example",
	Scheme: "header", Header: "X-Key", Issuer: "https://issuer.example"}

func createKeyset(t *testing.T) *Keyset {
	t.Helper()
	k, err := Create()
	must(t, err)
	return k
}

func writeKeyset(t *testing.T, k *Keyset) Secret {
	t.Helper()
	encoded, err := k.Encode(nil)
	must(t, err)
	return encoded
}

func TestSealOpen(t *testing.T) {
	t.Parallel()
	k := createKeyset(t)
	for _, plain := range []string{"", "x", text, strings.Repeat("y", 100_000)} {
		c, err := k.Seal([]byte(plain), full)
		must(t, err)
		if plain != "" && len(plain) > 1 && bytes.Contains(c, []byte(plain)) {
			t.Error("not encrypted")
		}
		if id, ok := KeyID(c); !ok || id != k.PrimaryID() {
			t.Errorf("key id %d, %v", id, ok)
		}
		got, err := k.Open(c, full)
		if err != nil || string(got) != plain {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
	}
	a, _ := k.Seal([]byte(text), full)
	b, _ := k.Seal([]byte(text), full)
	if bytes.Equal(a, b) {
		t.Error("the same nonce twice")
	}
	same := full
	same.Registry = "0xaBc"
	_, err := k.Open(a, same)
	must(t, err)
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	k := createKeyset(t)
	c, err := k.Seal([]byte(text), full)
	must(t, err)
	refused := func(name string, k *Keyset, c []byte, b Binding, problem string) {
		t.Helper()
		got, err := k.Open(c, b)
		if _, ok := errors.AsType[*DecryptError](err); !ok || !strings.Contains(err.Error(), problem) || got != nil {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		if err != nil && showsSecret(err.Error()) {
			t.Errorf("%s: shows the secret", name)
		}
	}
	for name, change := range map[string]func(*Binding){
		"purpose": func(b *Binding) { b.Purpose = "token.v2" }, "chain": func(b *Binding) { b.ChainID++ }, "registry": func(b *Binding) { b.Registry = "0xabd" },
		"agent": func(b *Binding) { b.AgentID = "43" }, "origin": func(b *Binding) { b.Origin = "https://b.example" }, "scheme": func(b *Binding) { b.Scheme = "bearer" },
		"header": func(b *Binding) { b.Header = "X-Other" }, "issuer": func(b *Binding) { b.Issuer = "" },
		"generation": func(b *Binding) { b.Generation = "1" },
		// Text moved from one part to the next must not produce the same bytes.
		"boundary": func(b *Binding) { b.AgentID, b.Origin = "42h", "ttps://a.example" },
	} {
		b := full
		change(&b)
		refused(name, k, c, b, "sealed for another agent, origin or header")
	}
	for n := range c {
		refused(fmt.Sprint("cut at ", n), k, c[:n], full, "stored secret: ")
		flipped := bytes.Clone(c)
		flipped[n] ^= 1
		refused(fmt.Sprint("flipped at ", n), k, flipped, full, "stored secret: ")
	}
	refused("nothing", k, nil, full, "is cut short")
	refused("longer", k, append(bytes.Clone(c), 0), full, "is damaged")
	other := createKeyset(t)
	refused("other keyset", other, c, full, "is not in HERALD_KEYSET")
}

func TestParse(t *testing.T) {
	t.Parallel()
	k := createKeyset(t)
	w := writeKeyset(t, k)
	again, err := Parse(New(w.Reveal() + "\n"))
	must(t, err)
	equal(t, "the primary key", again.PrimaryID(), k.PrimaryID())
	signing, err := keyset.NewHandle(signature.ED25519KeyTemplate())
	must(t, err)
	var raw bytes.Buffer
	must(t, insecurecleartextkeyset.Write(signing, keyset.NewBinaryWriter(&raw)))
	unprefixed := makeKeyset(t, tinkpb.OutputPrefixType_RAW)
	for name, s := range map[string]string{"no prefix": unprefixed.Reveal(), "empty": "", "no base64": "***" + text, "no keyset": base64.StdEncoding.EncodeToString([]byte(text)),
		"cut": w.Reveal()[:40], "no AEAD": base64.StdEncoding.EncodeToString(raw.Bytes())} {
		_, err := Parse(New(s))
		if _, ok := errors.AsType[*KeysetError](err); !ok || showsSecret(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		equal(t, verb, fmt.Sprintf(verb, k), fmt.Sprintf("keyset with primary key %d", k.PrimaryID()))
	}
}

// makeKeyset creates a keyset with parameters that `worker keys init` would not use.
func makeKeyset(t *testing.T, prefix tinkpb.OutputPrefixType) Secret {
	t.Helper()
	kt := aead.AES256GCMKeyTemplate()
	kt.OutputPrefixType = prefix
	h, err := keyset.NewHandle(kt)
	must(t, err)
	return writeKeyset(t, &Keyset{handle: h})
}

func TestLoadOrCreateFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keyset")
	k, made, err := LoadOrCreateFile(path, nil)
	if err != nil || !made {
		t.Fatalf("made %v, %v", made, err)
	}
	st, err := os.Stat(path)
	must(t, err)
	equal(t, "mode", st.Mode(), 0o600)
	again, made, err := LoadOrCreateFile(path, nil)
	if err != nil || made || again.PrimaryID() != k.PrimaryID() {
		t.Errorf("made %v, %v", made, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o601} {
		must(t, os.Chmod(path, mode))
		var ke *KeysetError
		if _, _, err := LoadOrCreateFile(path, nil); !errors.As(err, &ke) || !strings.Contains(err.Error(), "chmod 600") || !strings.Contains(err.Error(), path) {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	for name, content := range map[string]string{"empty": "", "rubbish": text} {
		path := filepath.Join(t.TempDir(), "keyset")
		must(t, os.WriteFile(path, []byte(content), 0o600))
		if _, _, err := LoadOrCreateFile(path, nil); !errors.As(err, new(*KeysetError)) || showsSecret(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
		if got, _ := os.ReadFile(path); string(got) != content {
			t.Errorf("%s: was overwritten", name)
		}
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	for _, path := range []string{t.TempDir(), fifo} {
		if _, _, err := LoadOrCreateFile(path, nil); !errors.As(err, new(*KeysetError)) {
			t.Errorf("took %s: %v", path, err)
		}
	}
	if _, _, err := LoadOrCreateFile(filepath.Join(t.TempDir(), "missing", "keyset"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// TestWrappedFile checks that a keyset file may be wrapped, by LoadOrCreateFile or by `worker keys rotate`, and that
// only its master key opens it.
func TestWrappedFile(t *testing.T) {
	t.Parallel()
	master := func(digit string) Master {
		m, err := MasterKey(New(strings.Repeat(digit, 64)))
		must(t, err)
		return m
	}
	path, m := filepath.Join(t.TempDir(), "keyset"), master("5")
	k, made, err := LoadOrCreateFile(path, m)
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if raw, err := os.ReadFile(path); err != nil || !IsWrapped(New(string(raw))) {
		t.Errorf("it lies in clear: %v", err)
	}
	again, made, err := LoadOrCreateFile(path, m)
	if err != nil || made || again.PrimaryID() != k.PrimaryID() {
		t.Error(made, err)
	}
	for want, m := range map[string]Master{"set HERALD_MASTER_KEY": nil, "does not open it": master("0")} {
		var ke *KeysetError
		if _, err := LoadFile(path, m); !errors.As(err, &ke) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", want, err)
		}
	}
	plain := filepath.Join(t.TempDir(), "keyset")
	k, _, err = LoadOrCreateFile(plain, nil)
	must(t, err)
	if again, err := LoadFile(plain, m); err != nil || again.PrimaryID() != k.PrimaryID() {
		t.Errorf("one in clear: %v", err)
	}
}

// TestLoadOrCreateFileAtOnce checks that several processes that start at once on one folder use the same keyset.
func TestLoadOrCreateFileAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keyset")
	ids, makers := make([]uint32, 8), make([]bool, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			k, made, err := LoadOrCreateFile(path, nil)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i], makers[i] = k.PrimaryID(), made
		})
	}
	wg.Wait()
	count := 0
	for i := range ids {
		equal(t, "keysets", ids[i], ids[0])
		if makers[i] {
			count++
		}
	}
	equal(t, "processes that made it", count, 1)
}
