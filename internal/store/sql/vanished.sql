-- vanished: those of some deliveries whose events the chain no longer has, as far as it was read up to its head.
--
-- $1 chain   $2 follower   $3 delivery ids uuid[]
SELECT delivery_id FROM herald.chain_events
 WHERE chain_id = $1 AND follower = $2 AND delivery_id = ANY($3) AND state = 'gone'
