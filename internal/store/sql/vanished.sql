-- vanished: select those of some deliveries whose events are gone: a reorg removed the event, and a cursor has read up
-- to the chain's newest block without finding it again.
--
-- $1 delivery ids uuid[]
SELECT delivery_id FROM herald.chain_events WHERE delivery_id = ANY($1) AND state = 'gone'
