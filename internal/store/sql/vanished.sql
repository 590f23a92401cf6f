-- vanished: those of some deliveries whose events are not on the chain as far as it was read.
--
-- $1 delivery ids uuid[]
-- Returns for each whether that is certain (gone), or whether the chain is not yet read up to its head (orphaned).
SELECT delivery_id, state = 'gone' FROM herald.chain_events WHERE delivery_id = ANY($1) AND state <> 'canonical'
