-- move_event: give a delivery the place on the chain at which its event is now. The agent is locked.
--
-- $1 id   $2 job jsonb   $3 order seq
-- The job gets a rank of its own, by which a worker that asks the chain about the old place finds that it was moved (ask_again.sql).
UPDATE herald.deliveries
   SET job = $2, order_seq = $3::text::numeric, updated_at = now(),
       candidate_rank = 1 + greatest(candidate_rank, (SELECT max(rank) FROM herald.candidates WHERE delivery_id = $1))
 WHERE id = $1
