-- A record of each running worker: the ids of the keys that it has loaded. A rotation of keys reads it.
--
-- Additive: a worker of the version before works with it and has no row. It can be run again.

-- +goose Up
CREATE TABLE IF NOT EXISTS herald.workers (
    id         uuid        PRIMARY KEY, -- of the process, made when it starts
    host       text        NOT NULL,    -- for people
    key_ids    bigint[]    NOT NULL,    -- keys that it opens with
    seals_with bigint      NOT NULL,    -- the one of them that it seals with
    seen_at    timestamptz NOT NULL DEFAULT now() -- it writes this every few seconds
);

-- +goose Down
DROP TABLE IF EXISTS herald.workers;
