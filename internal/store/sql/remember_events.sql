-- remember_events: store the blocks of deliveries' events, so that a reorg of a block finds its deliveries.
--
-- $1 chain   $2 backfill, or ''   $3 delivery ids uuid[], each once   $4 contracts text[]   $5 blocks bigint[]
--
-- If a contract's own cursor has read the block, a backfill adds missing events but changes none.
INSERT INTO herald.chain_events AS e (chain_id, delivery_id, contract, block_number)
SELECT $1, id, contract, block FROM unnest($3::uuid[], $4::text[], $5::bigint[]) AS w(id, contract, block)
ON CONFLICT (delivery_id) DO UPDATE SET block_number = excluded.block_number, state = 'canonical'
 WHERE $2 = '' OR NOT herald.is_followed(e.chain_id, e.contract, excluded.block_number)
