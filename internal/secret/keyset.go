package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/tink"
)

// Keyset seals and opens with AES-256-GCM; ciphertexts carry the id of their key, so that keys can be rotated.
type Keyset struct {
	handle *keyset.Handle
	aead   tink.AEAD
}

// Binding is what a ciphertext belongs to. It opens only under exactly the same one.
type Binding struct {
	Purpose  string // a constant of the caller with a version: "job.headers.v1"
	ChainID  uint64
	Registry string // IdentityRegistry, any case
	AgentID  string // decimal
	Origin   string // of a token netguard.CredentialOrigin; of a job's headers job.HeaderBinding says which
	Scheme   string // bearer, header, oauth, …
	Header   string
	Issuer   string
	// Generation is the state of a row that a ciphertext outside of it belongs to; empty: the ciphertext is the row's
	// own.
	Generation string
}

// associatedData is unambiguous: every part is preceded by its length.
func (b Binding) associatedData() []byte {
	out := binary.BigEndian.AppendUint64(nil, b.ChainID)
	parts := []string{b.Purpose, strings.ToLower(b.Registry), b.AgentID, b.Origin, b.Scheme, b.Header, b.Issuer}
	if b.Generation != "" { // younger than what is stored
		parts = append(parts, b.Generation)
	}
	for _, part := range parts {
		out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
		out = append(out, part...)
	}
	return out
}

// KeysetError means that a keyset cannot be used.
type KeysetError struct{ Problem string }

func (e *KeysetError) Error() string { return "keyset: " + e.Problem }

// DecryptError means that a ciphertext does not open: another keyset, another binding, or damaged bytes.
type DecryptError struct {
	Problem string
	KeyID   uint32 // of the key that sealed it, when the keyset lacks that; else 0
}

func (e *DecryptError) Error() string { return "stored secret: " + e.Problem }

// Create makes a keyset with one key.
func Create() (*Keyset, error) {
	h, err := keyset.NewHandle(aead.AES256GCMKeyTemplate())
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return newKeyset(h)
}

// Parse reads what Write wrote: base64 of Tink's binary form.
func Parse(text Secret) (*Keyset, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text.Reveal()))
	if err != nil {
		return nil, &KeysetError{"it is not base64; make one with `worker keys init`"}
	}
	h, err := insecurecleartextkeyset.Read(keyset.NewBinaryReader(bytes.NewReader(raw)))
	if err != nil {
		return nil, &KeysetError{"it is not a Tink keyset; make one with `worker keys init`"}
	}
	return newKeyset(h)
}

func newKeyset(h *keyset.Handle) (*Keyset, error) {
	for _, info := range h.KeysetInfo().GetKeyInfo() {
		if info.GetOutputPrefixType() != tinkpb.OutputPrefixType_TINK {
			return nil, &KeysetError{fmt.Sprintf("its key %d has no TINK prefix, by which a ciphertext finds its key",
				info.GetKeyId())}
		}
	}
	a, err := aead.New(h)
	if err != nil {
		return nil, &KeysetError{"its keys do not encrypt (AEAD is needed)"}
	}
	return &Keyset{handle: h, aead: a}, nil
}

// Write writes the keyset in clear, as base64. Whoever reads it can open everything sealed with it.
func (k *Keyset) Write(w io.Writer) error {
	var raw bytes.Buffer
	if err := insecurecleartextkeyset.Write(k.handle, keyset.NewBinaryWriter(&raw)); err != nil {
		return errors.New("encode the keyset")
	}
	_, err := io.WriteString(w, base64.StdEncoding.EncodeToString(raw.Bytes()))
	return err
}

// String prints no key material, and neither does any verb of fmt.
func (k *Keyset) String() string { return fmt.Sprintf("keyset with primary key %d", k.PrimaryID()) }

// Format implements fmt.Formatter.
func (k *Keyset) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// PrimaryID is the key that Seal uses.
func (k *Keyset) PrimaryID() uint32 { return k.handle.KeysetInfo().GetPrimaryKeyId() }

// Seal encrypts plain so that it opens only under b.
func (k *Keyset) Seal(plain []byte, b Binding) ([]byte, error) {
	c, err := k.aead.Encrypt(plain, b.associatedData())
	if err != nil {
		return nil, errors.New("encrypt a secret")
	}
	return c, nil
}

// Open decrypts what Seal made under the same binding. *DecryptError otherwise.
func (k *Keyset) Open(cipher []byte, b Binding) ([]byte, error) {
	id, ok := KeyID(cipher)
	if !ok {
		return nil, &DecryptError{Problem: "it is no ciphertext of Herald's, or is cut short: store the secret again"}
	}
	plain, err := k.aead.Decrypt(cipher, b.associatedData())
	if err == nil {
		return plain, nil
	}
	for _, info := range k.handle.KeysetInfo().GetKeyInfo() {
		if info.GetKeyId() == id {
			return nil, &DecryptError{Problem: "it was sealed for another agent, origin or header, or is damaged: store the secret again"}
		}
	}
	return nil, &DecryptError{KeyID: id, Problem: fmt.Sprintf("key %d sealed it, which is not in HERALD_KEYSET: put the keyset back that has this key, or store the secret again", id)}
}

// KeyID tells which key sealed a ciphertext: Tink's prefix is 0x01 and the id, big endian.
func KeyID(cipher []byte) (uint32, bool) {
	const prefix, nonce, tag = 5, 12, 16
	if len(cipher) < prefix+nonce+tag || cipher[0] != 1 {
		return 0, false
	}
	return binary.BigEndian.Uint32(cipher[1:prefix]), true
}

// LoadOrCreateFile reads the keyset of a file, or makes one there (0600) and says so: wrapped when there is a master
// (nil: none). A file that others can read is refused.
func LoadOrCreateFile(path string, m Master) (k *Keyset, made bool, err error) {
	k, err = LoadFile(path, m)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, false, err
	}
	if k, err = Create(); err != nil {
		return nil, false, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".keyset-*") // 0600
	if err != nil {
		return nil, false, fmt.Errorf("make a keyset file: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	write := k.Write
	if m != nil {
		write = func(w io.Writer) error { return k.WriteWrapped(w, m) }
	}
	err = errors.Join(write(tmp), tmp.Sync(), tmp.Close())
	if err == nil {
		// Link, not rename: of two processes that make one at once, the first must win for both.
		err = os.Link(tmp.Name(), path)
	}
	if errors.Is(err, fs.ErrExist) {
		k, err = LoadFile(path, m)
		return k, false, err
	}
	if err == nil {
		// What is sealed from now on needs this file after a power failure too.
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return nil, false, fmt.Errorf("write the keyset file %s: %w", path, err)
	}
	return k, true, nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// maxKeysetFile is far more than a keyset of many keys.
const maxKeysetFile = 64 << 10

// LoadFile reads the keyset of a file as Unwrap does; one that others can read is refused. fs.ErrNotExist when there
// is none.
func LoadFile(path string, m Master) (*Keyset, error) {
	// Looked at before it is opened: to open a FIFO waits for a writer.
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		return nil, &KeysetError{path + " is not a file"}
	}
	if err != nil {
		return nil, fmt.Errorf("read the keyset file: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the keyset file: %w", err)
	}
	defer func() { _ = f.Close() }()
	switch st, err = f.Stat(); {
	case err != nil:
		return nil, fmt.Errorf("read the keyset file: %w", err)
	case st.Mode().Perm()&0o077 != 0:
		return nil, &KeysetError{fmt.Sprintf("%s is open to others than its owner (mode %#o): run chmod 600 on it, and make new keys if somebody may have read it", path, st.Mode().Perm())}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxKeysetFile))
	if err != nil {
		return nil, fmt.Errorf("read the keyset file: %w", err)
	}
	k, err := Unwrap(New(string(raw)), m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}
