-- vanished: those of some deliveries whose events are not on the chain as far as it was read.
--
-- $1 chain   $2 follower   $3 delivery ids uuid[]
-- Returns for each whether that is certain (gone), or whether the chain is not yet read up to its head (orphaned).
SELECT delivery_id, state = 'gone' FROM herald.chain_events
 WHERE chain_id = $1 AND follower = $2 AND delivery_id = ANY($3) AND state <> 'canonical'
