-- vanished: which of some deliveries are not on the chain as far as it was read.
--
-- $1 chain   $2 follower   $3 delivery ids uuid[]
-- Returns them, each with whether that is certain (gone) or the chain is not read to its head yet (orphaned).
SELECT delivery_id, state = 'gone' FROM herald.chain_events
 WHERE chain_id = $1 AND follower = $2 AND delivery_id = ANY($3) AND state <> 'canonical'
