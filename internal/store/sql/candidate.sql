-- candidate: a job of the same key joins the line behind a delivery, unless one that says the same event stands there. The delivery is locked
-- by an earlier statement of the transaction, so that this one sees the whole line.
--
-- $1 delivery id   $2 transaction hash, or ''   $3 sum of the event   $4 sum of the action   $5 identity registry   $6 agent id
-- $7 order key     $8 order seq                 $9 job jsonb          $10 sealed headers or null
--
-- Returns whether one in the line has another action: which of them is delivered, the chain says later. That is asked in two ranges, as
-- "another" would read the whole line when all of it has one action.
WITH joined AS (
    INSERT INTO herald.candidates (delivery_id, rank, transaction_hash, event, action, identity_registry, agent_id, order_key, order_seq, job,
                                   secret_headers)
    SELECT $1, 1 + greatest(d.candidate_rank, (SELECT max(rank) FROM herald.candidates WHERE delivery_id = $1)), $2::text, $3::bytea,
           $4::bytea, $5::text, $6::text::numeric, $7::text, $8::text::numeric, $9::jsonb, $10::bytea
      FROM herald.deliveries d WHERE d.id = $1
    ON CONFLICT (delivery_id, event) DO NOTHING
)
SELECT EXISTS (SELECT FROM herald.candidates WHERE delivery_id = $1 AND action < $4)
    OR EXISTS (SELECT FROM herald.candidates WHERE delivery_id = $1 AND action > $4)
