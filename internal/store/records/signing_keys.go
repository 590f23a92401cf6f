package records

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// SigningKey is a key with which workers sign requests to agents. Its fields are in the order of signingKeyColumns.
type SigningKey struct {
	ID          string     // RFC 7638 thumbprint of the public key
	Ciphertext  []byte     // the Ed25519 seed, encrypted
	CreatedAt   time.Time  // when the public key was first published
	ActivatesAt time.Time  // when workers begin to sign with the key; they stop when the next key activates
	RetiresAt   *time.Time // end of the publication; nil: no newer key exists
}

const signingKeyColumns = `id, ciphertext, created_at, activates_at, retires_at`

// lockSigningKeys makes concurrent transactions that add keys wait for each other. It does not block readers.
const lockSigningKeys = `LOCK TABLE herald.signing_keys IN SHARE ROW EXCLUSIVE MODE`

// SigningKeys lists the published keys, the one that activates last first.
func (s *Store) SigningKeys(ctx context.Context) (list []SigningKey, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list signing keys")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT `+signingKeyColumns+` FROM herald.signing_keys
		WHERE retires_at IS NULL OR retires_at > now() ORDER BY activates_at DESC, id`)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[SigningKey])
}

// AddFirstSigningKey stores ID and Ciphertext of k as a key that signs at once, and returns true. If a key without an
// end of publication exists, for example because another worker added it at the same time, it stores nothing and
// returns false.
func (s *Store) AddFirstSigningKey(ctx context.Context, k SigningKey) (added bool, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "store the first signing key")
	defer end()
	err = pgx.BeginFunc(ctx, s.db.Conns, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSigningKeys); err != nil {
			return err
		}
		done, err := tx.Exec(ctx, `INSERT INTO herald.signing_keys (id, ciphertext, activates_at)
			SELECT $1, $2, now() WHERE NOT EXISTS (SELECT FROM herald.signing_keys WHERE retires_at IS NULL)`,
			k.ID, k.Ciphertext)
		added = done.RowsAffected() > 0
		return err
	})
	return added && err == nil, err
}

// RotateSigningKey stores ID and Ciphertext of k as a new key. The key is published at once, and workers begin to sign
// with it when the delay is over. After that, the other keys stay published for the duration keep at most. Keys that
// are no longer published are deleted.
func (s *Store) RotateSigningKey(ctx context.Context, k SigningKey,
	delay, keep time.Duration) (stored SigningKey, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "store signing key %s", k.ID)
	defer end()
	err = pgx.BeginFunc(ctx, s.db.Conns, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockSigningKeys); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM herald.signing_keys WHERE retires_at <= now()`); err != nil {
			return err
		}
		// The SQL function least ignores a null retires_at: a key without an end of publication now gets one.
		const retire = `UPDATE herald.signing_keys
			SET retires_at = least(retires_at, now() + $1::interval + $2::interval)`
		if _, err := tx.Exec(ctx, retire, delay, keep); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `INSERT INTO herald.signing_keys (id, ciphertext, activates_at)
			VALUES ($1, $2, now() + $3::interval) RETURNING `+signingKeyColumns, k.ID, k.Ciphertext, delay)
		stored, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[SigningKey])
		return err
	})
	return stored, err
}

// ResealSigningKey replaces a key's ciphertext. It returns false, and changes nothing, if the ciphertext has changed
// since old was read.
func (s *Store) ResealSigningKey(ctx context.Context, old SigningKey, ciphertext []byte) (changed bool, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "replace the sealed signing key %s", old.ID)
	defer end()
	done, err := s.db.Conns.Exec(ctx, `UPDATE herald.signing_keys SET ciphertext = $3
		WHERE id = $1 AND ciphertext = $2`,
		old.ID, old.Ciphertext, ciphertext)
	return done.RowsAffected() > 0, err
}
