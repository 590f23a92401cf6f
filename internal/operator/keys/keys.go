// Package keys rotates the keyset that seals stored secrets, seals them anew, and rotates the key that signs requests
// to agents. Each step is one call of an operator, and returns a keyset as text. It does not store keysets: the
// operator gives them to the workers and enqueuers.
//
// Invariants: no key is removed while a stored secret is sealed with it, and no step is taken for which the keys of a
// running worker are not ready. A keyset is returned only if it was read back with all of its keys.
package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// NewKeyset returns a keyset with one new key as text. With cleartext true it is not wrapped, so that every
// reader of the text can open the stored secrets.
func NewKeyset(o *operator.Operator, cleartext bool) (string, error) {
	k, err := secret.Create()
	if err != nil {
		return "", err
	}
	return writeKeyset(o, k, cleartext)
}

// writeKeyset returns a keyset as text, wrapped with the master key unless cleartext is true.
func writeKeyset(o *operator.Operator, k *secret.Keyset, cleartext bool) (string, error) {
	m, err := o.Backend.Master()
	switch {
	case err != nil:
		return "", err
	case cleartext:
		m = nil
	case m == nil:
		return "", operator.NewMisuse("set HERALD_MASTER_KEY_FILE to 32 bytes that wrap the keyset " +
			"(`openssl rand -base64 32` makes them), or use --cleartext and keep the output as secret as the stored " +
			"secrets")
	}
	text, err := k.Encode(m)
	if err == nil {
		err = checkReadable(k, text, m)
	}
	return text.Reveal(), err
}

// checkReadable verifies that a written keyset can be read back with all of its keys. Each of the two keysets must open
// ciphertexts that the other seals.
func checkReadable(k *secret.Keyset, written secret.Secret, m secret.Master) error {
	b := secret.Binding{Purpose: "keys.check.v1"}
	again, err := secret.Unwrap(written, m)
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

// Rotation is the result of one step of a key rotation: the new keyset, and the next step in words.
type Rotation struct {
	Keyset string
	Next   string
	from   *secret.Keyset // the keyset that it replaces; nil: none
}

// SaveKeyset writes the keyset of a step to a file with secret.ReplaceFile.
func SaveKeyset(o *operator.Operator, path string, r Rotation) error {
	m, err := o.Backend.Master()
	if err != nil {
		return err
	}
	return secret.ReplaceFile(path, r.Keyset, r.from, m)
}

// checkWorkers returns an error if the keys of a running worker are not ready for a step. problem describes the
// fault of a worker's keys, or returns "" if they are ready.
func checkWorkers(ctx context.Context, st *operator.Session, step string, problem func(records.Worker) string) error {
	workers, err := st.Workers(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if p := problem(w); p != "" {
			return fmt.Errorf("%s: the worker on %s (%s) %s; give it the keyset in force and restart it. "+
				"A worker that was killed counts for %s", step, text.Printable(w.Host), w.ID, p, ledger.WorkerGone)
		}
	}
	return nil
}

// Add is step 1 of a rotation: it adds a key that opens but does not seal yet. With checkRows it warns if stored
// secrets were sealed with keys that the keyset in force lacks.
func Add(ctx context.Context, o *operator.Operator, cleartext, checkRows bool) (Rotation, error) {
	return rotateKeyset(o, cleartext, func(k *secret.Keyset) (*secret.Keyset, string, error) {
		next, id, err := k.Add()
		if err == nil && checkRows {
			warnMissingKeys(ctx, o, k)
		}
		return next, fmt.Sprintf("key %d was added and does not seal yet. Next: give this keyset to every worker "+
			"and enqueuer, then `worker keys rotate promote`", id), err
	})
}

// Promote is step 2: the key begins to seal; id 0 is the newest key. It fails while a running worker lacks the key.
func Promote(ctx context.Context, o *operator.Operator, id uint32, cleartext bool) (Rotation, error) {
	return rotateKeyset(o, cleartext, func(k *secret.Keyset) (*secret.Keyset, string, error) {
		keys := k.Keys()
		id := cmp.Or(id, keys[len(keys)-1].ID)
		if id == k.PrimaryID() {
			return nil, "", operator.NewMisuse("key %d seals already: make a new one with `worker keys rotate add`", id)
		}
		next, err := k.Promote(id)
		if err != nil {
			return nil, "", err
		}
		st, err := o.OpenStore(ctx)
		if err != nil {
			return nil, "",
				fmt.Errorf("the key was not promoted, because it is unknown which keys the workers have: %w", err)
		}
		defer st.Close()
		err = checkWorkers(ctx, st, fmt.Sprintf("key %d was not promoted", id), func(w records.Worker) string {
			if w.HasKey(id) {
				return ""
			}
			return fmt.Sprintf("has not loaded key %d and could not open secrets that are sealed with it", id)
		})
		return next, fmt.Sprintf(
			"key %d seals. Next: give this keyset to every worker and enqueuer, then `worker keys reencrypt`", id), err
	})
}

// Remove is step 3: it removes a key. It fails while a stored secret is sealed with the key or a worker seals with
// it.
func Remove(ctx context.Context, o *operator.Operator, id uint32, cleartext bool) (Rotation, error) {
	return rotateKeyset(o, cleartext, func(k *secret.Keyset) (*secret.Keyset, string, error) {
		next, err := k.Remove(id)
		if err != nil {
			return nil, "", err
		}
		const unknown = "the key is kept, because the secrets that are sealed with it are unknown: %w"
		st, err := o.OpenDispatching(ctx)
		if err != nil {
			return nil, "", fmt.Errorf(unknown, err)
		}
		defer st.Close()
		// Check the workers first: after that none of them seals with the key any longer, so the count is final.
		err = checkWorkers(ctx, st, fmt.Sprintf("key %d is kept", id), func(w records.Worker) string {
			if w.SealsWith != id {
				return ""
			}
			return fmt.Sprintf("still seals with key %d", id)
		})
		if err != nil {
			return nil, "", err
		}
		uses, err := countKeys(ctx, st)
		if err != nil {
			return nil, "", fmt.Errorf(unknown, err)
		}
		if n := uses[id]; n > 0 {
			return nil, "", fmt.Errorf("key %d is kept: %s sealed with it and could never be opened again; "+
				"run `worker keys reencrypt` first", id, text.Count(n, "secret is", "secrets are"))
		}
		if err := checkSpooled(ctx, st, k); err != nil {
			return nil, "", fmt.Errorf("key %d is kept: %w", id, err)
		}
		return next, fmt.Sprintf("nothing is sealed with key %d. Next: give this keyset to every worker and enqueuer",
			id), nil
	})
}

// checkSpooled returns an error if the newest refresh token of a login waits in Redis (auth.RenewalSpool), where
// Reencrypt does not seal it anew. It cannot look into the embedded Redis of a worker that is stopped.
func checkSpooled(ctx context.Context, st *operator.Session, k *secret.Keyset) error {
	return operator.EachToken(ctx, st.TokensAfter, func(t records.Token) error {
		if t.Scheme != records.SchemeAuthorizationCode {
			return nil
		}
		stored, err := auth.LatestCredential(ctx, nil, k, t)
		if err != nil {
			return nil // no key of k opens the login, so it is lost already
		}
		latest, err := auth.LatestCredential(ctx, st.Spool, k, t)
		if err == nil && !latest.RefreshToken.Compare(stored.RefreshToken.Reveal()) {
			err = fmt.Errorf("the newest refresh token of %s for %s waits in Redis and may be sealed with it; "+
				"the next delivery to the agent stores it in Postgres",
				operator.DescribeAgent(t.Agent), text.Printable(t.Origin))
		}
		return err
	})
}

// rotateKeyset applies a change to the keyset in force and returns the new keyset as text.
func rotateKeyset(o *operator.Operator, cleartext bool,
	change func(*secret.Keyset) (next *secret.Keyset, advice string, err error)) (r Rotation, err error) {
	k, err := o.Backend.Keyset()
	if err != nil {
		return r, err
	}
	next, advice, err := change(k)
	if err != nil {
		return r, err
	}
	r.Next, r.from = advice, k
	r.Keyset, err = writeKeyset(o, next, cleartext)
	return r, err
}

// countTimeout bounds the search for keys that the keyset lacks.
const countTimeout = 5 * time.Second

// warnMissingKeys warns if stored secrets were sealed with keys that the keyset in force lacks: it is then perhaps the
// wrong keyset to rotate. It takes at most countTimeout and ignores errors, because the new keyset does not
// depend on it.
func warnMissingKeys(ctx context.Context, o *operator.Operator, k *secret.Keyset) {
	ctx, cancel := context.WithTimeout(ctx, min(o.Timeout, countTimeout))
	defer cancel()
	st, err := o.StoreAtHand(ctx)
	if err != nil {
		return
	}
	defer st.Close()
	uses, err := countKeys(ctx, st)
	if err != nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(uses)) {
		if !k.Has(id) {
			o.Notify("warning: %s sealed with key %d, which is not in HERALD_KEYSET: if you have the keyset with that "+
				"key, put it back and rotate that one", text.Count(uses[id], "secret is", "secrets are"), id)
		}
	}
}

// Key describes a key and counts the secrets that it seals.
type Key struct {
	ID     uint32 `json:"id"`
	Seals  bool   `json:"seals"`
	Here   bool   `json:"here"` // is in the keyset in force
	Sealed int    `json:"sealed"`
}

// List lists the keys of the keyset in force, then the keys that it lacks but that seal stored secrets.
func List(ctx context.Context, o *operator.Operator) ([]Key, error) {
	k, err := o.Backend.Keyset()
	if err != nil {
		return nil, err
	}
	st, err := o.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	uses, err := countKeys(ctx, st)
	if err != nil {
		return nil, err
	}
	var list []Key
	for _, key := range k.Keys() {
		list = append(list, Key{key.ID, key.Primary, true, uses[key.ID]})
		delete(uses, key.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(uses)) {
		list = append(list, Key{ID: id, Sealed: uses[id]})
	}
	return list, nil
}

// countKeys returns how many stored secrets each key seals.
func countKeys(ctx context.Context, st *operator.Session) (map[uint32]int, error) {
	uses := map[uint32]int{}
	err := eachSealed(ctx, st, func(s sealedSecret) error {
		if id, ok := secret.KeyID(s.ciphertext); ok {
			uses[id]++
		}
		return nil
	})
	return uses, err
}

// sealedSecret is a stored ciphertext of any kind.
type sealedSecret struct {
	name       string // of its owner, for people
	binding    secret.Binding
	ciphertext []byte
	replace    func(ctx context.Context, ciphertext []byte) (changed bool, err error)
}

// eachSealed calls do for every stored ciphertext: headers of jobs, tokens, access tokens of OAuth credentials and
// signing keys.
func eachSealed(ctx context.Context, st *operator.Session, do func(sealedSecret) error) error {
	for after, done := int64(0), false; !done; {
		var page []records.Sealed
		var err error
		if page, after, done, err = st.SealedAfter(ctx, after); err != nil {
			return err
		}
		for _, s := range page {
			if err := do(sealedSecret{fmt.Sprintf("delivery %s", s.ID), bindHeaders(s), s.Ciphertext,
				func(ctx context.Context, c []byte) (bool, error) { return st.Reseal(ctx, s, c) }}); err != nil {
				return err
			}
		}
	}

	named := func(what string, t records.Token) string {
		return fmt.Sprintf("%s of %s for %s", what, operator.DescribeAgent(t.Agent), text.Printable(t.Origin))
	}
	err := operator.EachToken(ctx, st.TokensAfter, func(t records.Token) error {
		return do(sealedSecret{named("the token", t), t.Binding(), t.Ciphertext,
			func(ctx context.Context, c []byte) (bool, error) { return st.ResealToken(ctx, t, c) }})
	})
	if err == nil {
		err = operator.EachToken(ctx, st.AccessAfter, func(t records.Token) error {
			return do(sealedSecret{named("the access token", t), t.AccessBinding(), t.Access.Ciphertext,
				func(ctx context.Context, c []byte) (bool, error) { return st.ResealAccess(ctx, t, c) }})
		})
	}
	if err == nil {
		err = eachSigningKey(ctx, st, do)
	}
	return err
}

// bindHeaders returns the binding with which the headers of a job are sealed.
func bindHeaders(s records.Sealed) secret.Binding {
	return job.HeaderBinding(s.ChainID, s.Registry, s.AgentID, s.URL)
}

// Reencryption is the result of sealing the stored secrets anew.
type Reencryption struct {
	Key     uint32   `json:"key"`
	Looked  int      `json:"looked"`
	Changed int      `json:"changed"`
	Left    int      `json:"left"` // could not be opened, and are unchanged
	Audit   int64    `json:"audit,omitempty"`
	Errors  []string `json:"errors,omitempty"` // the first maxListedErrors
}

// maxListedErrors bounds the errors that Reencryption lists.
const maxListedErrors = 10

// Reencrypt uses the current key to seal all secrets that other keys have sealed. It can be stopped and run again. With
// dryRun it only counts. If it returns a *operator.LeftError, the result is complete.
func Reencrypt(ctx context.Context, o *operator.Operator, actor string, dryRun bool) (out Reencryption, err error) {
	k, err := o.Backend.Keyset()
	if err != nil {
		return out, err
	}
	st, err := o.OpenStore(ctx)
	if err != nil {
		return out, err
	}
	defer st.Close()
	out.Key = k.PrimaryID()
	if !dryRun {
		err = checkWorkers(ctx, st, "nothing was sealed anew", func(w records.Worker) string {
			switch {
			case !w.HasKey(out.Key):
				return fmt.Sprintf("has not loaded key %d and could not open secrets that are sealed with it", out.Key)
			case w.SealsWith != out.Key:
				return fmt.Sprintf("still seals with key %d", w.SealsWith)
			}
			return ""
		})
		if err != nil {
			return out, err
		}
	}
	work := func() (int64, error) {
		err := eachSealed(ctx, st, func(s sealedSecret) error { return out.reseal(ctx, k, s, dryRun) })
		return int64(out.Changed), err
	}
	if dryRun {
		_, err = work()
	} else {
		row := records.Audit{Actor: actor, Action: "keys reencrypt"}
		out.Audit, err = operator.RunAudited(ctx, st, row, map[string]any{"key": out.Key}, work)
	}
	switch {
	case err != nil:
		return out, errors.Join(err, fmt.Errorf("%d of %s %s sealed anew; run it again to go on", out.Changed,
			text.Count(out.Looked, "secret", "secrets"), text.Plural(out.Changed, "was", "were")))
	case out.Left > 0:
		return out, &operator.LeftError{Text: text.Count(out.Left, "secret could not be opened and stays as it is",
			"secrets could not be opened and stay as they are")}
	}
	return out, nil
}

// reseal seals one secret with the current key. If the secret cannot be opened, reseal records the error and leaves it.
func (r *Reencryption) reseal(ctx context.Context, k *secret.Keyset, s sealedSecret, dryRun bool) error {
	r.Looked++
	if id, ok := secret.KeyID(s.ciphertext); ok && id == k.PrimaryID() {
		return nil
	}
	plain, err := k.Open(s.ciphertext, s.binding)
	if err != nil {
		if r.Left++; len(r.Errors) < maxListedErrors {
			r.Errors = append(r.Errors, fmt.Sprintf("%s: %v", s.name, err))
		}
		return nil
	}
	if dryRun {
		r.Changed++
		return nil
	}
	sealed, err := k.Seal(plain, s.binding)
	if err != nil {
		return err
	}
	changed, err := s.replace(ctx, sealed)
	if changed {
		r.Changed++
	}
	return err
}
