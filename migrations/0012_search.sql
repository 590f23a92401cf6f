-- What an operator searches by beside an agent: the client who wrote the feedback, the transaction it came with, and the kinds that are
-- rare. The indexes are on what never changes; the client in order_key outlives the job, which retention drops.
--
-- Additive; nobody is kept waiting. It can be run again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_client; -- one that was cut off is there and invalid
CREATE INDEX CONCURRENTLY deliveries_client ON herald.deliveries ((split_part(order_key, '/', 3)), seq DESC);
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_transaction;
CREATE INDEX CONCURRENTLY deliveries_transaction ON herald.deliveries ((job ->> 'transactionHash')) WHERE job IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_kind;
CREATE INDEX CONCURRENTLY deliveries_kind ON herald.deliveries (kind, seq DESC) WHERE kind <> 'NewFeedback';

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_client;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_transaction;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_kind;
