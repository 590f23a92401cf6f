-- Tables of the HTTP API: tokens with scopes, and the stream of status changes.
--
-- Additive: workers of the previous version continue to work. The stream has their changes too, because a trigger
-- writes it.

-- +goose Up
-- Tokens of the API. The secret part is never stored; 256 random bits need no slow hash.
CREATE TABLE IF NOT EXISTS herald.api_tokens (
    id           text        PRIMARY KEY,     -- the token's first part
    name         text        NOT NULL,        -- name of the user, for the audit
    scopes       text[]      NOT NULL,        -- read enqueue operate
    hash         bytea       NOT NULL,        -- SHA-256 of the secret part
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                 -- null: never
    revoked_at   timestamptz,                 -- null: not revoked
    last_used_at timestamptz                  -- with a resolution of one minute
);

-- Each change of a delivery's status, except to running, for GET /v1/events. Readers read in the order of (xid, id), up
-- to the oldest open transaction (pg_snapshot_xmin): so they never miss a row that is committed late, which could
-- happen with a plain sequence.
CREATE TABLE IF NOT EXISTS herald.delivery_events (
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT now(),
    delivery_id uuid        NOT NULL,
    status      text        NOT NULL,
    reason      text,
    attempts    integer     NOT NULL,
    PRIMARY KEY (xid, id)
);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.note_delivery_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO herald.delivery_events (delivery_id, status, reason, attempts)
    VALUES (NEW.id, NEW.status, NEW.reason, NEW.attempts);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- A claim is not an event: it would double the number of rows, and only says that a worker has begun.
CREATE OR REPLACE TRIGGER note_delivery_event AFTER UPDATE ON herald.deliveries FOR EACH ROW
    WHEN (NEW.status <> 'running' AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.reason IS DISTINCT FROM NEW.reason))
    EXECUTE FUNCTION herald.note_delivery_event();

-- +goose Down
DROP TRIGGER IF EXISTS note_delivery_event ON herald.deliveries;
DROP FUNCTION IF EXISTS herald.note_delivery_event();
DROP TABLE IF EXISTS herald.delivery_events, herald.api_tokens;
