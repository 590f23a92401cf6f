package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

type keysCmd struct {
	Init      keysInitCmd      `cmd:"" help:"Print a new keyset for HERALD_KEYSET (keep it: without it stored secrets are lost)."`
	List      keysListCmd      `cmd:"" help:"List the keys of the keyset in force, and what is sealed with each. There are few: the list has no pages."`
	Rotate    keysRotateCmd    `cmd:"" help:"Print the keyset of the next step of a rotation. Roll each one out to every worker and enqueuer before the next."`
	Reencrypt keysReencryptCmd `cmd:"" help:"Seal what older keys have sealed with the key that seals now. It can be stopped and run again."`
}

// clearFlag is the choice to have a keyset that nothing wraps.
type clearFlag struct {
	Cleartext bool `help:"Print it in clear, although whoever reads it can open what is stored. Without this HERALD_MASTER_KEY wraps it."`
}

// print writes a keyset as the operator chose.
func (f clearFlag) print(a *app, k *secret.Keyset) error {
	m, err := service.Master(a.cfg)
	var text strings.Builder
	switch {
	case err != nil:
		return err
	case f.Cleartext:
		m, err = nil, k.Write(&text)
	case m == nil:
		return &misuseError{"set HERALD_MASTER_KEY_FILE to 32 bytes that wrap the keyset (`openssl rand -base64 32` makes them), or say --cleartext and keep what is printed as secret as what it opens"}
	default:
		err = k.WriteWrapped(&text, m)
	}
	if err == nil {
		err = checkReadable(k, secret.New(text.String()), m)
	}
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(a.out, text.String()); err != nil {
		return fmt.Errorf("the keyset could not be written, so go on with the one in force: %w", err)
	}
	return nil
}

// checkReadable makes sure that a keyset can be read back from what is about to be printed, with all of its keys, and opens what it seals.
func checkReadable(k *secret.Keyset, text secret.Secret, m secret.Master) error {
	b := secret.Binding{Purpose: "keys.check.v1"}
	again, err := secret.Unwrap(text, m)
	if err == nil && (again.PrimaryID() != k.PrimaryID() || !slices.Equal(again.Keys(), k.Keys())) {
		err = errors.New("its keys are others")
	}
	for _, pair := range [][2]*secret.Keyset{{k, again}, {again, k}} {
		var sealed []byte
		if err == nil {
			sealed, err = pair[0].Seal([]byte("check"), b)
		}
		if err == nil {
			_, err = pair[1].Open(sealed, b)
		}
	}
	if err != nil {
		return fmt.Errorf("the keyset cannot be read back as it would be printed, so nothing was changed: %w", err)
	}
	return nil
}

type keysInitCmd struct{ clearFlag }

func (c *keysInitCmd) Run(a *app) error {
	k, err := secret.Create()
	if err != nil {
		return err
	}
	return c.print(a, k)
}

type keysRotateCmd struct {
	Add     keysAddCmd     `cmd:"" help:"Step 1: a new key that opens and does not seal yet."`
	Promote keysPromoteCmd `cmd:"" help:"Step 2: the new key seals. Then run keys reencrypt."`
	Remove  keysRemoveCmd  `cmd:"" help:"Step 3: remove keys that no longer protect any row."`
}

type keysAddCmd struct{ clearFlag }

func (c *keysAddCmd) Run(a *app) error {
	return c.step(a, func(k *secret.Keyset) (*secret.Keyset, string, error) {
		next, id, err := k.Add()
		if err == nil && !a.faulty {
			warnOfMissingKeys(a, k)
		}
		return next, fmt.Sprintf("key %d was added and does not seal yet. Next: give this keyset to every worker and enqueuer, then `worker keys rotate promote`", id), err
	})
}

type keysPromoteCmd struct {
	clearFlag
	Key uint32 `help:"Its id. Default: the newest." placeholder:"ID"`
}

func (c *keysPromoteCmd) Run(a *app) error {
	return c.step(a, func(k *secret.Keyset) (*secret.Keyset, string, error) {
		keys := k.Keys()
		id := cmp.Or(c.Key, keys[len(keys)-1].ID)
		if id == k.PrimaryID() {
			return nil, "", &misuseError{fmt.Sprintf("key %d seals already: make a new one with `worker keys rotate add`", id)}
		}
		next, err := k.Promote(id)
		return next, fmt.Sprintf("key %d seals. Next: give this keyset to every worker and enqueuer, then `worker keys reencrypt`", id), err
	})
}

type keysRemoveCmd struct {
	clearFlag
	Key uint32 `arg:"" help:"Its id, as keys list tells." placeholder:"ID"`
}

func (c *keysRemoveCmd) Run(a *app) error {
	return c.step(a, func(k *secret.Keyset) (*secret.Keyset, string, error) {
		next, err := k.Remove(c.Key)
		if err != nil {
			return nil, "", err
		}
		uses, err := countSealed(a)
		if err != nil {
			return nil, "", fmt.Errorf("the key is kept, because it cannot be told what is sealed with it: %w", err)
		}
		if n := uses[c.Key]; n > 0 {
			return nil, "", fmt.Errorf("key %d is kept: %d secrets are sealed with it and could never be opened again; run `worker keys reencrypt` first", c.Key, n)
		}
		return next, fmt.Sprintf("nothing is sealed with key %d. Next: give this keyset to every worker and enqueuer", c.Key), nil
	})
}

// step prints what a change makes of the keyset in force, and says so once it is printed.
func (f clearFlag) step(a *app, change func(*secret.Keyset) (next *secret.Keyset, said string, err error)) error {
	k, err := service.Keyset(a.cfg)
	if err != nil {
		return err
	}
	next, said, err := change(k)
	if err == nil {
		err = f.print(a, next)
	}
	if err == nil {
		fmt.Fprintln(a.err, said)
	}
	return err
}

// warnOfMissingKeys says that the keyset in force is perhaps the wrong one, if the rows at hand tell: what is rotated goes on from it.
// It looks for storePatience at most: the new keyset does not depend on what it finds.
func warnOfMissingKeys(a *app, k *secret.Keyset) {
	ctx, cancel := context.WithTimeout(a.ctx, min(a.timeout, storePatience))
	defer cancel()
	brief := *a
	brief.ctx = ctx
	st, err := brief.storeAtHand()
	if err != nil {
		return
	}
	defer st.close()
	uses := map[uint32]int{}
	if err := eachSealed(&brief, st, func(s sealedSecret) error {
		if id, ok := secret.KeyID(s.ciphertext); ok && !k.Has(id) {
			uses[id]++
		}
		return nil
	}); err != nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(uses)) {
		fmt.Fprintf(a.err, "warning: %d secrets are sealed with key %d, which is not in HERALD_KEYSET: if you have the keyset with that key, put it back and rotate that one\n", uses[id], id)
	}
}

type keysListCmd struct {
	JSON bool `name:"json" help:"As JSON."`
}

// keyUse is one key.
type keyUse struct {
	ID     uint32 `json:"id"`
	Seals  bool   `json:"seals"`
	Here   bool   `json:"here"` // in the keyset in force
	Sealed int    `json:"sealed"`
}

func (c *keysListCmd) Run(a *app) error {
	k, err := service.Keyset(a.cfg)
	if err != nil {
		return err
	}
	uses, err := countSealed(a)
	if err != nil {
		return err
	}
	var list []keyUse
	for _, key := range k.Keys() {
		list = append(list, keyUse{key.ID, key.Primary, true, uses[key.ID]})
		delete(uses, key.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(uses)) {
		list = append(list, keyUse{ID: id, Sealed: uses[id]})
	}
	if c.JSON {
		return writeJSON(a, list)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tSTATE\tSEALED WITH IT")
	for _, u := range list {
		state := "opens"
		switch {
		case u.Seals:
			state = "seals"
		case !u.Here:
			state = "missing: put it back, or what it sealed is lost"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\n", u.ID, state, u.Sealed)
	}
	return w.Flush()
}

// countSealed tells how many secrets each key has sealed.
func countSealed(a *app) (map[uint32]int, error) {
	st, err := a.store()
	if err != nil {
		return nil, err
	}
	defer st.close()
	uses := map[uint32]int{}
	err = eachSealed(a, st, func(s sealedSecret) error {
		id, ok := secret.KeyID(s.ciphertext)
		if ok {
			uses[id]++
		}
		return nil
	})
	return uses, err
}

// sealedSecret is a ciphertext, wherever it is kept.
type sealedSecret struct {
	name       string // of what it belongs to, for people
	binding    secret.Binding
	ciphertext []byte
	replace    func(ctx context.Context, ciphertext []byte) (changed bool, err error)
}

// eachSealed goes through all that is sealed: headers of jobs, tokens, access tokens of OAuth credentials.
func eachSealed(a *app, st *openStore, do func(sealedSecret) error) error {
	for after, done := uuid.Nil, false; !done; {
		var page []store.Sealed
		var err error
		if page, after, done, err = st.SealedAfter(a.ctx, after); err != nil {
			return err
		}
		for _, s := range page {
			if err := do(sealedHeaders(st, s)); err != nil {
				return err
			}
		}
	}
	if err := eachToken(a, st.TokensAfter, func(t store.Token) error { return do(sealedToken(st, t)) }); err != nil {
		return err
	}
	return eachToken(a, st.AccessAfter, func(t store.Token) error { return do(sealedAccess(st, t)) })
}

func sealedHeaders(st *openStore, s store.Sealed) sealedSecret {
	return sealedSecret{fmt.Sprintf("delivery %s", s.ID), delivery.HeaderBinding(s.ChainID, s.Registry, s.AgentID, s.URL), s.Ciphertext,
		func(ctx context.Context, c []byte) (bool, error) { return st.Reseal(ctx, s, c) }}
}

func sealedToken(st *openStore, t store.Token) sealedSecret {
	return sealedSecret{fmt.Sprintf("the token of %s for %s", nameOf(t.Agent), printable(t.Origin)), t.Binding(), t.Ciphertext,
		func(ctx context.Context, c []byte) (bool, error) { return st.ResealToken(ctx, t, c) }}
}

func sealedAccess(st *openStore, t store.Token) sealedSecret {
	return sealedSecret{fmt.Sprintf("the access token of %s for %s", nameOf(t.Agent), printable(t.Origin)), t.AccessBinding(), t.Access.Ciphertext,
		func(ctx context.Context, c []byte) (bool, error) { return st.ResealAccess(ctx, t, c) }}
}

type keysReencryptCmd struct {
	actorFlag
	DryRun bool `help:"Only count."`
	JSON   bool `name:"json" help:"As JSON."`
}

// resealed is what a re-encryption did.
type resealed struct {
	Key     uint32   `json:"key"`
	Looked  int      `json:"looked"`
	Changed int      `json:"changed"`
	Left    int      `json:"left"` // could not be opened; they stay as they are
	Audit   int64    `json:"audit,omitempty"`
	Errors  []string `json:"errors,omitempty"` // the first few
}

const toldErrors = 10

func (c *keysReencryptCmd) Run(a *app) error {
	k, err := service.Keyset(a.cfg)
	if err != nil {
		return err
	}
	st, err := a.store()
	if err != nil {
		return err
	}
	defer st.close()
	out := resealed{Key: k.PrimaryID()}
	work := func() (int64, error) {
		err := eachSealed(a, st, func(s sealedSecret) error { return c.reseal(a.ctx, k, s, &out) })
		return int64(out.Changed), err
	}
	if c.DryRun {
		_, err = work()
	} else {
		row := store.Audit{Actor: c.actor(), Action: "keys reencrypt", Filter: asJSON(map[string]any{"key": out.Key})}
		out.Audit, err = audited(a.ctx, st, row, work)
	}
	if err != nil {
		return errors.Join(err, fmt.Errorf("%d of %d secrets were sealed anew; run it again to go on", out.Changed, out.Looked))
	}
	if err := c.tell(a, out); err != nil {
		return err
	}
	if out.Left > 0 {
		return &leftError{fmt.Sprintf("%d secrets could not be opened and stay as they are", out.Left)}
	}
	return nil
}

// reseal seals one secret with the key that seals now. One that does not open is told and left.
func (c *keysReencryptCmd) reseal(ctx context.Context, k *secret.Keyset, s sealedSecret, out *resealed) error {
	out.Looked++
	if id, ok := secret.KeyID(s.ciphertext); ok && id == k.PrimaryID() {
		return nil
	}
	plain, err := k.Open(s.ciphertext, s.binding)
	if err != nil {
		if out.Left++; len(out.Errors) < toldErrors {
			out.Errors = append(out.Errors, fmt.Sprintf("%s: %v", s.name, err))
		}
		return nil
	}
	if c.DryRun {
		out.Changed++
		return nil
	}
	sealed, err := k.Seal(plain, s.binding)
	if err != nil {
		return err
	}
	changed, err := s.replace(ctx, sealed)
	if changed {
		out.Changed++
	}
	return err
}

func (c *keysReencryptCmd) tell(a *app, out resealed) error {
	if c.JSON {
		return writeJSON(a, out)
	}
	verb := "were sealed anew"
	if c.DryRun {
		verb = "would be sealed anew"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d secrets %s with key %d", out.Changed, out.Looked, verb, out.Key)
	if out.Audit > 0 {
		fmt.Fprintf(&b, " (audit %d)", out.Audit)
	}
	b.WriteByte('\n')
	for _, e := range out.Errors {
		fmt.Fprintf(&b, "left: %s\n", e)
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}
