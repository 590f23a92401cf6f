package ipfs

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ipfs/boxo/ipns"
	"github.com/ipfs/boxo/path"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
)

// FuzzRecord parses any bytes as the record of any name. For names whose keys the test owns, parseRecord accepts only
// records that it signed.
func FuzzRecord(f *testing.F) {
	// Validity is also compared with the real clock, so the records are valid longer than this test exists.
	now, eol := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
	signed := map[string]map[string]bool{} // by name: value and sequence
	var names []string
	for i := range 3 {
		// All fuzzing processes use the same keys.
		private, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, ed25519.SeedSize)))
		heraldtest.Must(f, err)
		id, err := peer.IDFromPrivateKey(private)
		heraldtest.Must(f, err)
		name := ipns.NameFromPeer(id).String()
		names = append(names, name)
		signed[name] = map[string]bool{}
		for sequence, options := range [][]ipns.Option{nil, {ipns.WithV1Compatibility(false)}, {ipns.WithPublicKey(true)}, {ipns.WithMetadata(map[string]any{"x": "y"})}} {
			value, err := path.NewPath(fmt.Sprintf("/ipfs/%s/%d-%d", v1, i, sequence))
			heraldtest.Must(f, err)
			rec, err := ipns.NewRecord(private, value, uint64(sequence), eol, time.Hour*time.Duration(i), options...)
			heraldtest.Must(f, err)
			b, err := ipns.MarshalRecord(rec)
			heraldtest.Must(f, err)
			signed[name][said(value.String(), uint64(sequence))] = true
			_, err = parseRecord(name, b, now)
			heraldtest.Must(f, err)
			f.Add(name, b)
			if i > 0 {
				f.Add(names[0], b) // the record of another name
			}
		}
	}
	f.Add(key, []byte{})
	f.Add("example.com", []byte("\x0a\x00"))

	f.Fuzz(func(t *testing.T, name string, record []byte) {
		for _, name := range append([]string{name}, names...) {
			found, err := parseRecord(name, record, now)
			if err != nil {
				continue
			}
			if known, ok := signed[name]; ok && !known[said(found.value, found.sequence)] {
				t.Errorf("%s was made to say %s (%d), which was never signed", name, found.value, found.sequence)
			}
			if ttl := found.expires.Sub(now); ttl <= 0 || ttl > longestName {
				t.Errorf("believed for %s", ttl)
			}
			// A value that the key's owner signed is untrusted too, so it must not lead to other sources.
			if ref, err := parseImmutable("", found.value, "the name"); err == nil && ref.source != SourceCID && ref.source != SourceIPNS {
				t.Errorf("%q leads to %s", found.value, ref.source)
			}
		}
	})
}

func said(value string, sequence uint64) string { return fmt.Sprintf("%s %d", value, sequence) }
