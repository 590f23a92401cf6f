package main

import (
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/operator/keys"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSigningKeys checks that a rotation of signing keys is listed and audited, and that `keys reencrypt` seals the
// signing keys with a new keyset.
func TestSigningKeys(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	list := func() []keys.SigningKey { return ask[[]keys.SigningKey](d, "signing-key", "list") }
	d.worker(0, "signing-key", "rotate", "--after", "1m")
	d.sql(`UPDATE herald.signing_keys SET activates_at = now()`)
	first := list()
	if len(first) != 1 || first[0].State != keys.Signs || first[0].RetiresAt != nil {
		t.Fatalf("%+v", first)
	}
	out := d.out("signing-key", "rotate", "--actor", "night shift")
	both := list()
	if len(both) != 2 || both[0].State != keys.Next || both[1].ID != first[0].ID || both[1].State != keys.Signs ||
		!strings.HasPrefix(out, both[0].ID+" signs from ") || both[0].ActivatesAt.Sub(both[0].CreatedAt) != time.Hour ||
		both[1].RetiresAt.Sub(both[0].ActivatesAt) != 24*time.Hour {
		t.Errorf("%s, %+v", out, both)
	}
	table, _ := d.worker(0, "signing-key", "list")
	heraldtest.Contains(t, "the list", table, both[0].ID, keys.Next)
	d.says(exitMisuse, "59s is not from 1m0s to 720h", "signing-key", "rotate", "--after=59s")
	d.says(exitMisuse, "1000h0m0s is not from 0s to 720h", "signing-key", "rotate", "--keep=1000h")
	if a := d.audits()[0]; a.Action != "signing-key rotate" || a.Actor != "night shift" || !strings.Contains(string(a.Filter), both[0].ID) {
		t.Errorf("%+v", a)
	}
	// The rotation of the keyset includes the signing keys, so the old key can be removed afterwards.
	d.with(d.next("keys", "rotate", "add"))
	d.with(d.next("keys", "rotate", "promote"))
	d.says(0, "2 of 2 secrets were sealed anew", "keys", "reencrypt")
	d.says(0, "0 of 2 secrets were sealed anew", "keys", "reencrypt")
}
