-- place_events: remember in which blocks the events of deliveries are.
--
-- $1 chain   $2 follower   $3 delivery ids uuid[], each once   $4 blocks bigint[]
INSERT INTO herald.chain_events (chain_id, follower, delivery_id, block_number)
SELECT $1, $2, id, block FROM unnest($3::uuid[], $4::bigint[]) AS w(id, block)
ON CONFLICT (chain_id, follower, delivery_id) DO UPDATE SET block_number = excluded.block_number, state = 'canonical'
