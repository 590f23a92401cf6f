-- remember_events: remember in which blocks the events of deliveries are.
--
-- $1 chain   $2 backfill, or ''   $3 delivery ids uuid[], each once   $4 contracts text[]   $5 blocks bigint[]
--
-- If a contract's cursor has read the block, a backfill only adds events that are not remembered yet.
INSERT INTO herald.chain_events AS e (chain_id, delivery_id, contract, block_number)
SELECT $1, id, contract, block FROM unnest($3::uuid[], $4::text[], $5::bigint[]) AS w(id, contract, block)
ON CONFLICT (delivery_id) DO UPDATE SET block_number = excluded.block_number, state = 'canonical'
 WHERE $2 = '' OR NOT herald.is_followed(e.chain_id, e.contract, excluded.block_number)
