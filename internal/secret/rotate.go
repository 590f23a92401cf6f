package secret

import (
	"errors"
	"fmt"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

// A rotation takes three keysets, one after the other, each rolled out to every worker before the next one is made,
// so that no worker ever meets a ciphertext whose key it lacks:
//
//	Add      the new key opens, the old one still seals
//	Promote  the new key seals, the old one still opens
//	Remove   the old key is gone; only when nothing is sealed with it any more (worker keys reencrypt)

// Key is one key of a keyset.
type Key struct {
	ID      uint32
	Primary bool // Seal uses it
}

// MaxKeys bounds a keyset. A rotation needs two; more are left over from rotations that were not ended.
const MaxKeys = 16

// Keys lists the keys, the oldest first.
func (k *Keyset) Keys() []Key {
	info := k.handle.KeysetInfo()
	keys := make([]Key, 0, len(info.GetKeyInfo()))
	for _, i := range info.GetKeyInfo() {
		keys = append(keys, Key{ID: i.GetKeyId(), Primary: i.GetKeyId() == info.GetPrimaryKeyId()})
	}
	return keys
}

// Has tells whether the keyset can open what key id sealed.
func (k *Keyset) Has(id uint32) bool {
	for _, key := range k.Keys() {
		if key.ID == id {
			return true
		}
	}
	return false
}

// Add returns the keyset with one key more, which opens and does not seal yet. k is not changed.
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

// Promote returns the keyset with key id sealing. *KeysetError when there is no such key.
func (k *Keyset) Promote(id uint32) (*Keyset, error) {
	if !k.Has(id) {
		return nil, &KeysetError{fmt.Sprintf("it has no key %d", id)}
	}
	return k.changeCopy(func(m *keyset.Manager) error { return m.SetPrimary(id) })
}

// Remove returns the keyset without key id. What is sealed with it never opens again, so the caller looks first.
// *KeysetError when there is no such key, or it is the one that seals.
func (k *Keyset) Remove(id uint32) (*Keyset, error) {
	switch {
	case !k.Has(id):
		return nil, &KeysetError{fmt.Sprintf("it has no key %d", id)}
	case k.PrimaryID() == id:
		return nil, &KeysetError{fmt.Sprintf("key %d is the one that seals: promote another one first", id)}
	}
	return k.changeCopy(func(m *keyset.Manager) error { return m.Delete(id) })
}

// changeCopy works on a copy.
func (k *Keyset) changeCopy(do func(*keyset.Manager) error) (*Keyset, error) {
	m := keyset.NewManagerFromHandle(k.handle)
	if err := do(m); err != nil {
		return nil, errors.New("change the keyset") // Tink's words could be about key material
	}
	h, err := m.Handle()
	if err != nil {
		return nil, errors.New("change the keyset")
	}
	return newKeyset(h)
}
