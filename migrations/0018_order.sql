-- The order of one client's deliveries to one agent (DESIGN §5): one is in flight at a time, and a known earlier index goes first.
-- What must wait is waiting, behind_earlier, and not in its agent's line; whoever puts a delivery into Redis asks order_wait, under
-- the agent's lock, and whoever records one lets the next of its client join the line.
--
-- Additive: a worker of the version before goes on beside it and knows no order; order holds when all workers are of this version, for
-- what was accepted since. Columns have constant defaults: no row is written anew. It can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits
ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS holds_until     timestamptz,                   -- holds later ones of its client until then: infinity before its first
                                                                            -- attempt, 60 s after that began; null: it holds none
    ADD COLUMN IF NOT EXISTS awaits_feedback boolean NOT NULL DEFAULT false;-- while behind_earlier: until its feedback has ended
SET lock_timeout = 0; -- what follows blocks nobody while it waits

-- What holds others. A hash of the key: it is long, and all keys of a chain begin alike.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_order; -- one that was cut off is there and invalid
CREATE INDEX CONCURRENTLY deliveries_order ON herald.deliveries (hashtextextended(order_key, 0), order_seq)
    WHERE holds_until IS NOT NULL AND finished_at IS NULL;

-- order_hash names a client of an agent, and which of its deliveries: 0 with an order, 1 without, 2 that await a feedback.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.order_hash(class integer, registry text, order_key text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended(registry || order_key, class)
$$;
-- +goose StatementEnd
-- has_order tells whether deliveries of a kind keep an order among themselves: those with an index, or a block, of their own.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.has_order(kind text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT kind IN ('NewFeedback', 'ValidationResponse')
$$;
-- +goose StatementEnd
-- behind_hash is of what is held by others, null for all else: one of those with an order of a client, another one of those without, and a
-- third of what awaits its feedback, so that none of these hides the others. By place, which a claim does not change; and an expression of
-- its own, because conditions on place, reason or kind would have statements of a delivery's way planned by the indexes of lists.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.behind_hash(place text, reason text, awaits boolean, kind text, registry text, order_key text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN place = 'waiting' AND reason = 'behind_earlier'
                THEN herald.order_hash(CASE WHEN awaits THEN 2 WHEN kind IN ('NewFeedback', 'ValidationResponse') THEN 0 ELSE 1 END, registry, order_key) END
$$;
-- +goose StatementEnd
-- follow_turn is when a delivery that is held follows: by its index what has one, or awaits what has; the others, which anybody may write
-- about an old feedback, as they came.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.follow_turn(awaits boolean, kind text, order_seq numeric, seq bigint) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN awaits OR kind IN ('NewFeedback', 'ValidationResponse') THEN order_seq ELSE seq END
$$;
-- +goose StatementEnd
-- What is held by others, in the order in which it follows.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_behind;
CREATE INDEX CONCURRENTLY deliveries_behind ON herald.deliveries
    (herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key), herald.follow_turn(awaits_feedback, kind, order_seq, seq))
    WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) IS NOT NULL;

-- follows_feedback tells whether a delivery is a revocation or a response, which is of use only after its feedback. A retraction after a
-- reorg is not: it takes back what the agent was told before, whatever has the feedback's key now.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.follows_feedback(kind text, key text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT kind = 'ResponseAppended' OR kind = 'FeedbackRevoked' AND key LIKE '%#FeedbackRevoked%'
$$;
-- +goose StatementEnd

-- awaits_feedback tells whether a delivery follows a feedback that is known and has not ended.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.awaits_feedback(x_kind text, x_key text, x_order_key text, x_order_seq numeric) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN herald.follows_feedback(x_kind, x_key)
       AND EXISTS (SELECT FROM herald.deliveries
                    WHERE key = x_order_key || '/' || x_order_seq || '#NewFeedback' AND finished_at IS NULL
                      AND (replays = 0 OR NOT called)); -- an agent that has it need not wait for a replay
END $$;
-- +goose StatementEnd

-- ignores_order tells whether an operator switched an agent's order off (policy order=off).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.ignores_order(x_chain bigint, x_registry text, x_agent numeric) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM herald.agents
                    WHERE chain_id = x_chain AND identity_registry = x_registry AND agent_id = x_agent AND policy ->> 'order' = 'off');
END $$;
-- +goose StatementEnd

-- order_wait is the rule: null when a delivery may go to its agent now, else when to look again, ten years from now where whoever records the
-- other one lets it go. The
-- agent is locked, or the answer may be old. It must wait while, of its own agent and client (order_key),
--   1. another one is dispatched: in Redis, or with a worker;
--   2. an earlier one has had no attempt, or its first began less than 60 s ago (holds_until), or it stands in line, unless an
--      operator replays it;
--   3. it is a revocation or response and its feedback has not ended.
-- What is asked often comes first, and mostly finds nothing: three probes of an index.
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

-- earlier_wait is order_wait for who knows that no other one of the client is dispatched: claim_followers.sql asks that of many at once.
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
-- Without order nobody would let them go on.
UPDATE herald.deliveries SET status = 'queued', reason = NULL, next_attempt_at = NULL WHERE status = 'waiting' AND reason = 'behind_earlier';
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS holds_until, DROP COLUMN IF EXISTS awaits_feedback;
SET lock_timeout = 0;
