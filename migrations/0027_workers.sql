-- A record of each running worker: the ids of the keys that it has loaded. A rotation of keys reads it.
--
-- Additive: workers of the previous version continue to work and have no row. The migration can be run again.

-- +goose Up
CREATE TABLE IF NOT EXISTS herald.workers (
    id         uuid        PRIMARY KEY, -- id of the process, created at its start
    host       text        NOT NULL,    -- shown to operators
    key_ids    bigint[]    NOT NULL,    -- keys with which it can decrypt
    seals_with bigint      NOT NULL,    -- the one of them with which it encrypts
    seen_at    timestamptz NOT NULL DEFAULT now() -- the worker updates it every few seconds
);

-- +goose Down
DROP TABLE IF EXISTS herald.workers;
