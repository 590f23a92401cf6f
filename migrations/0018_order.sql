-- The order of the deliveries of one ordering key, which means one client and one agent (docs/design/delivery.md). One
-- is sent at a time, and a known earlier index goes first. A delivery that must wait has the status waiting
-- (behind_earlier) and is not in its agent's backlog. Every transaction that dispatches a delivery calls order_wait
-- under the agent's lock, and every record puts the next delivery of the ordering key into the backlog.
--
-- Additive: workers of the previous version continue to work without order. The order is kept once all workers have
-- this version, for deliveries accepted since then. The columns have constant defaults: Postgres rewrites no row. The
-- migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it
ALTER TABLE herald.deliveries
    -- The delivery blocks later ones of its ordering key until then: infinity before its first attempt, 60 s after that
    -- attempt began; null: it blocks none.
    ADD COLUMN IF NOT EXISTS holds_until     timestamptz,
    ADD COLUMN IF NOT EXISTS awaits_feedback boolean NOT NULL DEFAULT false;-- while behind_earlier: until its feedback has ended
SET lock_timeout = 0; -- the statements below block no worker while they wait

-- Deliveries that may block others. The index has a hash of the key, because keys are long and all keys of a chain have
-- the same beginning.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_order; -- an interrupted CREATE leaves an invalid index
CREATE INDEX CONCURRENTLY deliveries_order ON herald.deliveries (hashtextextended(order_key, 0), order_seq)
    WHERE holds_until IS NOT NULL AND finished_at IS NULL;

-- order_hash returns a hash of an ordering key and a class of its deliveries: 0 with an index, 1 without, 2 waiting for
-- a feedback.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.order_hash(class integer, registry text, order_key text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended(registry || order_key, class)
$$;
-- +goose StatementEnd
-- has_order reports whether deliveries of a kind are ordered among themselves: the kinds that have an index, or a
-- block, of their own.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.has_order(kind text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT kind IN ('NewFeedback', 'ValidationResponse')
$$;
-- +goose StatementEnd
-- behind_hash returns the order_hash of a delivery that waits for another one (behind_earlier), and null for all
-- others. The three classes of an ordering key have different hashes, so that waiting deliveries of one class do not
-- hide those of another. It depends on place, which a claim does not change. It is an expression, because an index with
-- conditions on place, reason or kind could be chosen for the statements that move deliveries.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.behind_hash(place text, reason text, awaits boolean, kind text, registry text, order_key text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN place = 'waiting' AND reason = 'behind_earlier'
                THEN herald.order_hash(CASE WHEN awaits THEN 2 WHEN kind IN ('NewFeedback', 'ValidationResponse') THEN 0 ELSE 1 END, registry, order_key) END
$$;
-- +goose StatementEnd
-- follow_turn returns the position of a waiting delivery among those of its ordering key and class: the index for
-- deliveries that have one or wait for a feedback, and the order of acceptance for the others, because anyone may
-- respond to an old feedback.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.follow_turn(awaits boolean, kind text, order_seq numeric, seq bigint) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN awaits OR kind IN ('NewFeedback', 'ValidationResponse') THEN order_seq ELSE seq END
$$;
-- +goose StatementEnd
-- Deliveries that wait for others, in their order.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_behind;
CREATE INDEX CONCURRENTLY deliveries_behind ON herald.deliveries
    (herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key), herald.follow_turn(awaits_feedback, kind, order_seq, seq))
    WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) IS NOT NULL;

-- follows_feedback reports whether a delivery is a revocation or a response, which are useful only after their
-- feedback. A retraction after a reorg is neither: it takes back a feedback that the agent received before, even if
-- another event has that feedback's key now.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.follows_feedback(kind text, key text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT kind = 'ResponseAppended' OR kind = 'FeedbackRevoked' AND key LIKE '%#FeedbackRevoked%'
$$;
-- +goose StatementEnd

-- awaits_feedback reports whether a delivery follows a feedback that has a delivery, and that has not ended.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.awaits_feedback(x_kind text, x_key text, x_order_key text, x_order_seq numeric) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN herald.follows_feedback(x_kind, x_key)
       AND EXISTS (SELECT FROM herald.deliveries
                    WHERE key = x_order_key || '/' || x_order_seq || '#NewFeedback' AND finished_at IS NULL
                      AND (replays = 0 OR NOT called)); -- a replay of a feedback that the agent has received blocks nothing
END $$;
-- +goose StatementEnd

-- ignores_order reports whether an operator switched the order off for an agent (policy order=off).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.ignores_order(x_chain bigint, x_registry text, x_agent numeric) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM herald.agents
                    WHERE chain_id = x_chain AND identity_registry = x_registry AND agent_id = x_agent AND policy ->> 'order' = 'off');
END $$;
-- +goose StatementEnd

-- order_wait returns null if a delivery may be dispatched now, else the time at which to test it again. The time is ten
-- years from now if the record of the other delivery will release it. The caller must have locked the agent, or the
-- answer may be old. The delivery must wait while, among the deliveries of its agent and ordering key,
--   1. another one is dispatched: its task is in Redis, or a worker has claimed it;
--   2. an earlier one has had no attempt, or its first attempt began less than 60 s ago (holds_until), or it is in the
--      backlog, unless an operator replayed it;
--   3. it is a revocation or response, and its feedback has not ended.
-- The frequent tests come first and usually find nothing: three index lookups.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.order_wait(x_id uuid, x_chain bigint, x_registry text, x_agent numeric, x_kind text, x_key text,
                                             x_order_key text, x_order_seq numeric) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    look timestamptz;
BEGIN
    SELECT now() + interval '10 years' INTO look
      FROM herald.deliveries
     WHERE chain_id = x_chain AND identity_registry = x_registry AND agent_id = x_agent AND place = 'out'
       AND order_key = x_order_key AND id <> x_id
     LIMIT 1;
    IF look IS NULL THEN
        RETURN herald.earlier_wait(x_chain, x_registry, x_agent, x_kind, x_key, x_order_key, x_order_seq);
    ELSIF herald.ignores_order(x_chain, x_registry, x_agent) THEN
        RETURN NULL;
    END IF;
    RETURN look;
END $$;
-- +goose StatementEnd

-- earlier_wait is order_wait without the first test, for a caller that knows that no other delivery of the ordering key
-- is dispatched: claim_followers.sql tests many at once.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.earlier_wait(x_chain bigint, x_registry text, x_agent numeric, x_kind text, x_key text,
                                               x_order_key text, x_order_seq numeric) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    look timestamptz;
BEGIN
    SELECT CASE WHEN place <> 'line' THEN least(holds_until, now() + interval '10 years') ELSE now() + interval '10 years' END INTO look
      FROM herald.deliveries
     WHERE hashtextextended(order_key, 0) = hashtextextended(x_order_key, 0) AND order_seq < x_order_seq
       AND holds_until IS NOT NULL AND finished_at IS NULL
       AND (holds_until > now() OR place = 'line') AND replays = 0 AND order_key = x_order_key
       AND chain_id = x_chain AND identity_registry = x_registry AND agent_id = x_agent
     ORDER BY order_seq
     LIMIT 1;
    IF look IS NULL AND herald.awaits_feedback(x_kind, x_key, x_order_key, x_order_seq) THEN
        look := now() + interval '10 years';
    END IF;
    IF look IS NOT NULL AND herald.ignores_order(x_chain, x_registry, x_agent) THEN
        RETURN NULL;
    END IF;
    RETURN look;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION IF EXISTS herald.order_wait(uuid, bigint, text, numeric, text, text, text, numeric);
DROP FUNCTION IF EXISTS herald.earlier_wait(bigint, text, numeric, text, text, text, numeric);
DROP FUNCTION IF EXISTS herald.awaits_feedback(text, text, text, numeric);
DROP FUNCTION IF EXISTS herald.ignores_order(bigint, text, numeric);
DROP FUNCTION IF EXISTS herald.follows_feedback(text, text);
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_behind;
DROP FUNCTION IF EXISTS herald.has_order(text);
DROP FUNCTION IF EXISTS herald.follow_turn(boolean, text, numeric, bigint);
DROP FUNCTION IF EXISTS herald.behind_hash(text, text, boolean, text, text, text);
DROP FUNCTION IF EXISTS herald.order_hash(integer, text, text);
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_order;
-- Without the order, no transaction would release them.
UPDATE herald.deliveries SET status = 'queued', reason = NULL, next_attempt_at = NULL WHERE status = 'waiting' AND reason = 'behind_earlier';
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS holds_until, DROP COLUMN IF EXISTS awaits_feedback;
SET lock_timeout = 0;
