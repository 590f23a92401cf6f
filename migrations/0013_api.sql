-- What the HTTP API needs: tokens with scopes, and the stream of status changes.
--
-- Additive: a worker of the version before goes on working beside it; what it changes is in the stream too, since Postgres itself notes
-- the change.

-- +goose Up
-- Tokens of the API. The secret part is never stored: 256 random bits need no slow hash.
CREATE TABLE IF NOT EXISTS herald.api_tokens (
    id           text        PRIMARY KEY,     -- the token's first part
    name         text        NOT NULL,        -- who uses it: the audit names it
    scopes       text[]      NOT NULL,        -- read enqueue operate
    hash         bytea       NOT NULL,        -- SHA-256 of the secret part
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                 -- null: never
    revoked_at   timestamptz,                 -- null: it is good
    last_used_at timestamptz                  -- to the minute
);

-- Each change of a delivery's status but to running, for GET /v1/events. Readers go by (xid, id) and only as far as no older
-- transaction is open (pg_snapshot_xmin): a row that is committed late is never passed over, which a plain sequence cannot promise.
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

-- A claim is no event: it would double what is written, and says only that a worker looked.
CREATE OR REPLACE TRIGGER note_delivery_event AFTER UPDATE ON herald.deliveries FOR EACH ROW
    WHEN (NEW.status <> 'running' AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.reason IS DISTINCT FROM NEW.reason))
    EXECUTE FUNCTION herald.note_delivery_event();

-- +goose Down
DROP TRIGGER IF EXISTS note_delivery_event ON herald.deliveries;
DROP FUNCTION IF EXISTS herald.note_delivery_event();
DROP TABLE IF EXISTS herald.delivery_events, herald.api_tokens;
