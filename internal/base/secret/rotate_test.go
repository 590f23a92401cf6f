package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// TestRotation performs a rotation as operators do. At each step, the previous and the next keyset are in use at the
// same time. Each keyset is written and read again after its step.
func TestRotation(t *testing.T) {
	t.Parallel()
	read := func(k *Keyset, err error) *Keyset {
		must(t, err)
		k, err = Parse(writeKeyset(t, k))
		must(t, err)
		return k
	}
	first := createKeyset(t)
	old := first.PrimaryID()
	grown, id, err := first.Add()
	if err != nil || id == old {
		t.Fatalf("key %d, %v", id, err)
	}
	added := read(grown, nil)
	promoted := read(added.Promote(id))
	ended := read(promoted.Remove(old))
	for name, pair := range map[string][2]*Keyset{"roll-out": {first, added}, "promotion": {added, promoted}, "the old key's end": {promoted, ended}} {
		for _, ways := range [][2]*Keyset{pair, {pair[1], pair[0]}} {
			if name == "the old key's end" && ways[0] == ended {
				continue // from then on, only the new key seals; see below
			}
			c, err := ways[0].Seal([]byte(text), full)
			must(t, err)
			if got, err := ways[1].Open(c, full); err != nil || string(got) != text {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if keys := added.Keys(); len(keys) != 2 || keys[0] != (Key{old, true}) || keys[1] != (Key{id, false}) {
		t.Errorf("added: %+v", keys)
	}
	if keys := ended.Keys(); len(keys) != 1 || keys[0] != (Key{id, true}) || ended.Has(old) || !promoted.Has(old) {
		t.Errorf("ended: %+v", keys)
	}
	equal(t, "the primary key of the promoted keyset", promoted.PrimaryID(), id)
	equal(t, "the primary key of the keyset that was copied", first.PrimaryID(), old)
	equal(t, "keys of the keyset that was copied", len(first.Keys()), 1)
	for sealed, opens := range map[*Keyset]*Keyset{first: ended, promoted: first} {
		c, _ := sealed.Seal([]byte(text), full)
		if _, err := opens.Open(c, full); !errors.As(err, new(*DecryptError)) || !strings.Contains(err.Error(), "is not in HERALD_KEYSET") {
			t.Errorf("a key that is not in the keyset: %v", err)
		}
	}
}

func TestRotationRefuses(t *testing.T) {
	t.Parallel()
	k := createKeyset(t)
	var refused *KeysetError
	if _, err := k.Promote(k.PrimaryID() + 1); !errors.As(err, &refused) {
		t.Errorf("promote: %v", err)
	}
	if _, err := k.Remove(k.PrimaryID() + 1); !errors.As(err, &refused) {
		t.Errorf("remove another's: %v", err)
	}
	if _, err := k.Remove(k.PrimaryID()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "promote another") {
		t.Errorf("remove the primary: %v", err)
	}
	for len(k.Keys()) < MaxKeys {
		grown, _, err := k.Add()
		must(t, err)
		k = grown
	}
	if _, _, err := k.Add(); !errors.As(err, &refused) {
		t.Errorf("one too many: %v", err)
	}
}

func TestWrapped(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{7}, 32)
	m, err := MasterKey(New(base64.StdEncoding.EncodeToString(key) + "\n"))
	must(t, err)
	byHex, err := MasterKey(New(hex.EncodeToString(key)))
	must(t, err)
	other, err := MasterKey(New(strings.Repeat("00", 32)))
	must(t, err)
	k := createKeyset(t)
	encoded, err := k.Encode(m)
	must(t, err)
	w := New(encoded.Reveal() + "\n")
	if !IsWrapped(w) || IsWrapped(writeKeyset(t, k)) {
		t.Error("IsWrapped")
	}
	c, _ := k.Seal([]byte(text), full)
	for name, m := range map[string]Master{"base64": m, "hex": byHex} {
		got, err := Unwrap(w, m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if plain, err := got.Open(c, full); err != nil || string(plain) != text {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := Unwrap(writeKeyset(t, k), m); err != nil || got.PrimaryID() != k.PrimaryID() {
		t.Errorf("in clear: %v", err)
	}
	for name, err := range map[string]error{
		"no master": second(Unwrap(w, nil)), "another master": second(Unwrap(w, other)), "cut": second(Unwrap(New(w.Reveal()[:60]), m)),
		"as clear text": second(Parse(w)), "flipped": second(Unwrap(New(strings.Replace(w.Reveal(), w.Reveal()[40:44], "AAAA", 1)), m)),
	} {
		if _, ok := errors.AsType[*KeysetError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"", "short", hex.EncodeToString(key[:31]), strings.Repeat("z", 64)} {
		if _, err := MasterKey(New(bad)); err == nil || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func second(_ *Keyset, err error) error { return err }
