-- Keys that requests to agents are signed with (HERALD_PUBLIC_URL): one table for all workers, which sign with the same key and publish the
-- same directory. A handful of rows: a rotation adds one, and drops those that are published no more.
--
-- Additive: a worker of the version before signs nothing. It can be run again.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS herald.signing_keys (
    id           text        PRIMARY KEY,            -- the public key's RFC 7638 thumbprint, which signatures name (keyid)
    ciphertext   bytea       NOT NULL,               -- the Ed25519 seed, sealed with the keyset for this id
    created_at   timestamptz NOT NULL DEFAULT now(), -- published since
    activates_at timestamptz NOT NULL,               -- signs from then on, until a younger one does
    retires_at   timestamptz                         -- published until then; null: it is the youngest
);

-- +goose Down
DROP TABLE IF EXISTS herald.signing_keys;
