-- A delivery that became dead or held is counted when its transaction commits, if it is still dead or held then. A
-- transaction that holds a delivery and releases it at once, because the reason no longer applies, raises no alert.
--
-- Workers of the previous version continue to work.

-- +goose Up
SET LOCAL lock_timeout = '10s'; -- while a DROP TRIGGER waits for its lock, every worker waits behind it
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.note_mishap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO herald.mishaps AS m (chain_id, identity_registry, agent_id, status, reason, deliveries)
    SELECT NEW.chain_id, NEW.identity_registry, NEW.agent_id, NEW.status, coalesce(NEW.reason, ''), ARRAY[NEW.id]
     WHERE EXISTS (SELECT FROM herald.deliveries WHERE id = NEW.id AND status = NEW.status)
    ON CONFLICT (chain_id, identity_registry, agent_id, status, reason) DO UPDATE
       SET count = m.count + 1,
           deliveries = CASE WHEN cardinality(m.deliveries) < 20 THEN m.deliveries || excluded.deliveries ELSE m.deliveries END;
    RETURN NULL;
END $$;
-- +goose StatementEnd
DROP TRIGGER IF EXISTS deliveries_mishap ON herald.deliveries;
CREATE CONSTRAINT TRIGGER deliveries_mishap AFTER UPDATE OF status ON herald.deliveries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status IN ('dead', 'held') AND OLD.status <> NEW.status) EXECUTE FUNCTION herald.note_mishap();

-- +goose Down
SET LOCAL lock_timeout = '10s';
DROP TRIGGER IF EXISTS deliveries_mishap ON herald.deliveries;
CREATE TRIGGER deliveries_mishap AFTER UPDATE OF status ON herald.deliveries FOR EACH ROW
    WHEN (NEW.status IN ('dead', 'held') AND OLD.status <> NEW.status) EXECUTE FUNCTION herald.note_mishap();
