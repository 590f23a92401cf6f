package keys

import (
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/operator"
)

// SigningKey describes a key that signs requests to agents.
type SigningKey struct {
	ID          string     `json:"id"` // keyid of the signatures
	State       string     `json:"state"`
	CreatedAt   time.Time  `json:"createdAt"`
	ActivatesAt time.Time  `json:"activatesAt"`
	RetiresAt   *time.Time `json:"retiresAt,omitempty"` // missing for the newest key
}

// leastPublished is the least time for which a key is published before it signs. Each worker reads the keys every half
// minute.
const leastPublished = time.Minute

// States of a signing key. All are published.
const (
	Signs = "signs"
	Next  = "next" // signs from ActivatesAt on
	Past  = "past" // signs no longer; published until RetiresAt, so that its signatures verify
)

// ListSigning lists the published keys, newest first.
func ListSigning(ctx context.Context, o *operator.Operator) (list []SigningKey, err error) {
	err = o.ReadBounded(ctx, func(ctx context.Context, st *operator.Session) error {
		keys, err := st.SigningKeys(ctx)
		state, now := Signs, time.Now()
		for _, k := range keys {
			shown := SigningKey{k.ID, state, k.CreatedAt, k.ActivatesAt, k.RetiresAt}
			if k.ActivatesAt.After(now) {
				shown.State = Next
			} else {
				state = Past
			}
			list = append(list, shown)
		}
		return err
	})
	return list, err
}

// RotateSigning creates a key. It is published at once and signs after the duration after. The older keys stay
// published for keep beyond that.
func RotateSigning(ctx context.Context, o *operator.Operator, after, keep time.Duration,
	actor string) (out SigningKey, err error) {
	const most = 30 * 24 * time.Hour
	switch {
	case after < leastPublished || after > most:
		return out, operator.NewMisuseOf("after",
			"%s is not from %s to %s: every worker has to publish the key before one signs with it, "+
				"or agents refuse the call", after, leastPublished, most)
	case keep < 0 || keep > most:
		return out, operator.NewMisuseOf("keep", "%s is not from 0s to %s", keep, most)
	}
	keys, err := o.Backend.Keyset()
	if err != nil {
		return out, err
	}
	made, err := signing.NewKey(keys)
	if err != nil {
		return out, err
	}
	what := map[string]any{"key": made.ID, "after": after.String(), "keep": keep.String()}
	err = o.ChangeOne(ctx, actor, "signing-key rotate", what, func(st *operator.Session) (err error) {
		made, err = st.RotateSigningKey(ctx, made, after, keep)
		return err
	})
	return SigningKey{made.ID, Next, made.CreatedAt, made.ActivatesAt, made.RetiresAt}, err
}

// eachSigningKey calls do for each signing key, as eachSealed requires.
func eachSigningKey(ctx context.Context, st *operator.Session, do func(sealedSecret) error) error {
	keys, err := st.SigningKeys(ctx)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := do(sealedSecret{fmt.Sprintf("signing key %s", k.ID), signing.Binding(k.ID), k.Ciphertext,
			func(ctx context.Context, c []byte) (bool, error) { return st.ResealSigningKey(ctx, k, c) }}); err != nil {
			return err
		}
	}
	return nil
}
