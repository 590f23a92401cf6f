-- vanished: those of some deliveries whose events the chain no longer has, as far as it was read up to its head.
--
-- $1 delivery ids uuid[]
SELECT delivery_id FROM herald.chain_events WHERE delivery_id = ANY($1) AND state = 'gone'
