-- Makes the view herald.deliveries writable for tests: a write changes all columns of herald.history and herald.work. An
-- update of rows that another transaction may change at the same time must name these tables.
CREATE FUNCTION herald.write_delivery() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM herald.work WHERE id = OLD.id;
        DELETE FROM herald.history WHERE id = OLD.id;
        RETURN OLD;
    END IF;
    NEW.status := coalesce(NEW.status, 'queued');
    NEW.created_at := coalesce(NEW.created_at, now());
    NEW.accepted_at := coalesce(NEW.accepted_at, now());
    NEW.updated_at := coalesce(NEW.updated_at, now());
    IF TG_OP = 'INSERT' THEN
        INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, finished_at, status)
        VALUES (NEW.id, NEW.key, NEW.kind, NEW.chain_id, NEW.identity_registry, NEW.agent_id, NEW.order_key, NEW.order_seq, NEW.finished_at,
                CASE WHEN NEW.finished_at IS NULL THEN 'queued' ELSE NEW.status END)
        RETURNING seq INTO NEW.seq;
    END IF;
    UPDATE herald.history
       SET key = NEW.key, kind = NEW.kind, chain_id = NEW.chain_id, identity_registry = NEW.identity_registry, agent_id = NEW.agent_id,
           order_key = NEW.order_key, order_seq = NEW.order_seq, order_hash = NEW.order_hash, bulk = coalesce(NEW.bulk, false), job = NEW.job,
           secret_headers = NEW.secret_headers, traceparent = NEW.traceparent, verified = coalesce(NEW.verified, false),
           bound = coalesce(NEW.bound, false), source = coalesce(NEW.source, ''), trust = coalesce(NEW.trust, 0), hints = coalesce(NEW.hints, 0),
           corrected = NEW.corrected, tool_name = NEW.tool_name, endpoint = NEW.endpoint, file_verification = NEW.file_verification,
           file_source = NEW.file_source, file_disagrees = NEW.file_disagrees, result = NEW.result, created_at = NEW.created_at,
           status = CASE WHEN NEW.finished_at IS NULL THEN 'queued' ELSE NEW.status END,
           reason = CASE WHEN NEW.finished_at IS NOT NULL THEN NEW.reason END, error = CASE WHEN NEW.finished_at IS NOT NULL THEN NEW.error END,
           attempts = coalesce(NEW.attempts, 0), budget_base = coalesce(NEW.budget_base, 0), fetch_failures = coalesce(NEW.fetch_failures, 0),
           replays = coalesce(NEW.replays, 0), dispatch = coalesce(NEW.dispatch, 0), called = coalesce(NEW.called, false), claim_no = NEW.claim_no,
           accepted_at = NEW.accepted_at, updated_at = NEW.updated_at, finished_at = NEW.finished_at
     WHERE id = NEW.id;
    IF NEW.finished_at IS NOT NULL THEN
        DELETE FROM herald.work WHERE id = NEW.id;
        RETURN NEW;
    END IF;
    INSERT INTO herald.work AS w (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, bulk, verified, bound, status, reason,
           error, attempts, budget_base, fetch_failures, replays, dispatch, handed_at, called, claim_no, claimed_at, lease_until, next_attempt_at, order_hash, turn,
           delays_until, accepted_at, updated_at)
    VALUES (NEW.id, NEW.seq, NEW.key, NEW.kind, NEW.chain_id, NEW.identity_registry, NEW.agent_id, NEW.order_key, NEW.order_seq, coalesce(NEW.bulk, false),
           coalesce(NEW.verified, false), coalesce(NEW.bound, false), NEW.status, NEW.reason, NEW.error, coalesce(NEW.attempts, 0),
           coalesce(NEW.budget_base, 0), coalesce(NEW.fetch_failures, 0), coalesce(NEW.replays, 0), coalesce(NEW.dispatch, 0), NEW.handed_at,
           coalesce(NEW.called, false), NEW.claim_no, CASE WHEN NEW.status = 'running' THEN now() END, NEW.lease_until, NEW.next_attempt_at, NEW.order_hash, coalesce(NEW.turn, false), NEW.delays_until,
           NEW.accepted_at, NEW.updated_at)
    ON CONFLICT (id) DO UPDATE
       SET seq = excluded.seq, key = excluded.key, kind = excluded.kind, chain_id = excluded.chain_id, identity_registry = excluded.identity_registry,
           agent_id = excluded.agent_id, order_key = excluded.order_key, order_seq = excluded.order_seq, bulk = excluded.bulk, verified = excluded.verified,
           bound = excluded.bound, status = excluded.status, reason = excluded.reason, error = excluded.error, attempts = excluded.attempts,
           budget_base = excluded.budget_base, fetch_failures = excluded.fetch_failures, replays = excluded.replays, dispatch = excluded.dispatch,
           handed_at = excluded.handed_at, called = excluded.called, claim_no = excluded.claim_no,
           claimed_at = CASE WHEN NEW.status = 'running' THEN coalesce(w.claimed_at, now()) END, lease_until = excluded.lease_until,
           next_attempt_at = excluded.next_attempt_at, order_hash = excluded.order_hash, turn = excluded.turn, delays_until = excluded.delays_until,
           accepted_at = excluded.accepted_at, updated_at = excluded.updated_at;
    RETURN NEW;
END $$;
CREATE TRIGGER write_delivery INSTEAD OF INSERT OR UPDATE OR DELETE ON herald.deliveries FOR EACH ROW EXECUTE FUNCTION herald.write_delivery();
