-- Keys that sign requests to agents (HERALD_PUBLIC_URL). All workers sign with the same key and publish the same
-- directory. The table has few rows: a rotation adds a key and deletes those that are no longer published.
--
-- Additive: workers of the previous version sign nothing. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS herald.signing_keys (
    id           text        PRIMARY KEY,            -- RFC 7638 thumbprint of the public key, the keyid of signatures
    ciphertext   bytea       NOT NULL,               -- the Ed25519 seed, sealed with the keyset for this id
    created_at   timestamptz NOT NULL DEFAULT now(), -- published since
    activates_at timestamptz NOT NULL,               -- signs from then on, until a younger key does
    retires_at   timestamptz                         -- published until then; null: the youngest key
);

-- +goose Down
DROP TABLE IF EXISTS herald.signing_keys;
