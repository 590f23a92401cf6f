package secret

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

// A rotation consists of three keysets. Each must be deployed to every worker before the next one is created, so that
// no worker receives a ciphertext whose key it lacks:
//
//	Add      the new key decrypts, the old one still encrypts
//	Promote  the new key encrypts, the old one still decrypts
//	Remove   the old key is deleted, after `worker keys reencrypt` has replaced all its ciphertexts

// Key describes one key of a keyset.
type Key struct {
	ID      uint32
	Primary bool // Seal uses this key
}

// MaxKeys bounds the keys of a keyset. A rotation needs two; further keys remain from unfinished rotations.
const MaxKeys = 16

// Keys returns the keys, the oldest first.
func (k *Keyset) Keys() []Key {
	info := k.handle.KeysetInfo()
	keys := make([]Key, 0, len(info.GetKeyInfo()))
	for _, i := range info.GetKeyInfo() {
		keys = append(keys, Key{ID: i.GetKeyId(), Primary: i.GetKeyId() == info.GetPrimaryKeyId()})
	}
	return keys
}

// Has reports whether the keyset contains the key id.
func (k *Keyset) Has(id uint32) bool {
	return slices.ContainsFunc(k.Keys(), func(key Key) bool { return key.ID == id })
}

// Add returns a copy of the keyset with an additional key, which does not encrypt yet. k is not changed.
func (k *Keyset) Add() (_ *Keyset, id uint32, err error) {
	if len(k.Keys()) >= MaxKeys {
		return nil, 0, &KeysetError{fmt.Sprintf("it has %d keys already: remove those that nothing is sealed with",
			MaxKeys)}
	}
	grown, err := k.changeCopy(func(m *keyset.Manager) error {
		id, err = m.Add(aead.AES256GCMKeyTemplate())
		return err
	})
	return grown, id, err
}

// Promote returns a copy of the keyset in which key id encrypts. It returns *KeysetError if there is no such key.
func (k *Keyset) Promote(id uint32) (*Keyset, error) {
	if !k.Has(id) {
		return nil, &KeysetError{fmt.Sprintf("it has no key %d", id)}
	}
	return k.changeCopy(func(m *keyset.Manager) error { return m.SetPrimary(id) })
}

// Remove returns a copy of the keyset without key id. Ciphertexts of that key can never be decrypted again, so the
// caller must first check that none exists. Remove returns *KeysetError if there is no such key or if it is the
// primary key.
func (k *Keyset) Remove(id uint32) (*Keyset, error) {
	switch {
	case !k.Has(id):
		return nil, &KeysetError{fmt.Sprintf("it has no key %d", id)}
	case k.PrimaryID() == id:
		return nil, &KeysetError{fmt.Sprintf("key %d is the one that seals: promote another one first", id)}
	}
	return k.changeCopy(func(m *keyset.Manager) error { return m.Delete(id) })
}

// changeCopy applies do to a copy of the keyset.
func (k *Keyset) changeCopy(do func(*keyset.Manager) error) (*Keyset, error) {
	m := keyset.NewManagerFromHandle(k.handle)
	if err := do(m); err != nil {
		return nil, errors.New("change the keyset") // Tink's error could contain key material
	}
	h, err := m.Handle()
	if err != nil {
		return nil, errors.New("change the keyset")
	}
	return newKeyset(h)
}
