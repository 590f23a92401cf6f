-- move_event: replace a delivery's job by one with the event's new position on the chain. The agent is locked.
--
-- $1 id   $2 job jsonb   $3 order seq
--
-- The job gets a new rank. By the rank, a worker that asked the chain about the old position finds that the event moved
-- (ask_again.sql).
UPDATE herald.deliveries
   SET job = $2, order_seq = $3::text::numeric, updated_at = now(),
       candidate_rank = 1 + greatest(candidate_rank, (SELECT max(rank) FROM herald.candidates WHERE delivery_id = $1))
 WHERE id = $1
