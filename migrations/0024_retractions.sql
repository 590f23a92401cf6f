-- A retraction waits for no other delivery of its ordering key: the event that it retracts is gone, and the event that
-- has its index now waits for the retraction. (A retraction blocks others while holds_until is set; the worker waits
-- until a call of the retracted delivery has ended.)
--
-- Additive: workers of the previous version let retractions wait as before. The migration can be run again.

-- +goose Up
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.order_wait(x_id uuid, x_chain bigint, x_registry text, x_agent numeric, x_kind text, x_key text,
                                             x_order_key text, x_order_seq numeric) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    look timestamptz;
BEGIN
    IF x_key LIKE '%#Retraction@%' THEN
        RETURN NULL;
    END IF;
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
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.earlier_wait(x_chain bigint, x_registry text, x_agent numeric, x_kind text, x_key text,
                                               x_order_key text, x_order_seq numeric) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    look timestamptz;
BEGIN
    IF x_key LIKE '%#Retraction@%' THEN
        RETURN NULL;
    END IF;
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
