-- What an operator searches by beside an agent: the client who wrote the feedback, the transaction it came with, and the kinds that are
-- rare. The indexes are on what never changes; the client in order_key outlives the job, which retention drops.
--
-- Additive; nobody is kept waiting. It can be run again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_client; -- one that was cut off is there and invalid
CREATE INDEX CONCURRENTLY deliveries_client ON herald.deliveries ((split_part(order_key, '/', 3)), (seq + 0)); -- seq + 0: see 0003
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_transaction;
CREATE INDEX CONCURRENTLY deliveries_transaction ON herald.deliveries ((job ->> 'transactionHash')) WHERE job IS NOT NULL;
-- What is queued, in the order of lists. finished_at is in the condition so that no statement of a delivery's way, which does not ask
-- for it, is planned by this one: each has an index by agent.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_queue;
CREATE INDEX CONCURRENTLY deliveries_queue ON herald.deliveries (seq) WHERE place IN ('line', 'out') AND finished_at IS NULL;
-- Of those that did not end well or have not ended; what is delivered has no reason, and never enters it.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_reason;
CREATE INDEX CONCURRENTLY deliveries_reason ON herald.deliveries (place, reason, seq DESC)
    WHERE place IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled');
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_kind;
CREATE INDEX CONCURRENTLY deliveries_kind ON herald.deliveries (kind, seq DESC) WHERE kind <> 'NewFeedback';

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_client;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_transaction;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_kind;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_reason;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_queue;
