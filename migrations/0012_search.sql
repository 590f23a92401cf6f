-- Indexes for operators' searches, besides those by agent: by the client that wrote the feedback, by its transaction,
-- and by the rare kinds. The indexed values never change; the client is taken from order_key, which stays when
-- retention deletes the job.
--
-- Additive: no worker waits. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_client; -- an interrupted CREATE leaves an invalid index
CREATE INDEX CONCURRENTLY deliveries_client ON herald.deliveries ((split_part(order_key, '/', 3)), (seq + 0)); -- seq + 0: see 0003
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_transaction;
CREATE INDEX CONCURRENTLY deliveries_transaction ON herald.deliveries ((job ->> 'transactionHash')) WHERE job IS NOT NULL;
-- Queued and running deliveries, in the order of lists. The condition on finished_at keeps Postgres from using this
-- index for the statements that move deliveries, which do not have that condition: each of them has an index by agent.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_queue;
CREATE INDEX CONCURRENTLY deliveries_queue ON herald.deliveries (seq) WHERE place IN ('line', 'out') AND finished_at IS NULL;
-- Deliveries with a reason. A delivered one has no reason and is never in this index.
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
