package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

// tokens looks for stored tokens that are not sent any more, or will not be before long. Without tokens it says nothing.
func (d *doctor) tokens(st *store.Store) {
	keys, err := service.Keyset(d.cfg)
	if err != nil {
		keys = nil // its own line says so
	}
	var t tokenCheckup
	err = d.within(func(ctx context.Context) error { return t.look(&app{ctx: ctx}, st, keys) })
	switch {
	case err != nil:
		d.add("tokens", err, "")
	case t.stored > 0:
		d.add("tokens", t.fault(), t.words())
	}
}

// tokenCheckup is what was found.
type tokenCheckup struct {
	stored                int
	expired, soon, sealed []string // whose; sealed with a key that is not there
}

func (t *tokenCheckup) look(a *app, st *store.Store, keys *secret.Keyset) error {
	now := time.Now()
	return eachToken(a, &openStore{Store: st}, func(token store.Token) error {
		t.stored++
		name := fmt.Sprintf("%d:%s for %s", token.ChainID, token.ID, printable(token.Origin))
		if id, ok := secret.KeyID(token.Ciphertext); keys != nil && (!ok || !keys.Has(id)) {
			t.sealed = append(t.sealed, name)
		}
		switch tokenState(token, now) {
		case "expired":
			t.expired = append(t.expired, name)
		case "soon":
			t.soon = append(t.soon, name+" at "+token.ExpiresAt.UTC().Format(time.RFC3339))
		}
		return nil
	})
}

// fault is what holds deliveries now.
func (t *tokenCheckup) fault() error {
	var said []string
	if len(t.expired) > 0 {
		said = append(said, fmt.Sprintf("%d of %d have expired and hold deliveries: %s", len(t.expired), t.stored, firstOf(t.expired)))
	}
	if len(t.sealed) > 0 {
		said = append(said, fmt.Sprintf("%d of %d are sealed with a key that the keyset lacks: %s", len(t.sealed), t.stored, firstOf(t.sealed)))
	}
	if said == nil {
		return nil
	}
	return errors.New(strings.Join(said, "; ") + ": `worker token set` stores another one")
}

func (t *tokenCheckup) words() string {
	if len(t.soon) == 0 {
		return fmt.Sprintf("%d are stored, none expires within 7 days", t.stored)
	}
	return fmt.Sprintf("%d are stored; warning: %d expire within 7 days: %s", t.stored, len(t.soon), firstOf(t.soon))
}

// firstOf names a few.
func firstOf(names []string) string {
	const most = 3
	out := strings.Join(names[:min(len(names), most)], ", ")
	if n := len(names) - most; n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}
