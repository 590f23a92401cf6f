-- candidate: a job of the same event joins the line behind a delivery, unless one of the same position stands there. The delivery is locked
-- by an earlier statement of the transaction, so that this one sees the whole line.
--
-- $1 delivery id   $2 transaction hash, or ''   $3 sum of the position   $4 sum of the action   $5 identity registry   $6 order seq
-- $7 job jsonb     $8 sealed headers or null
--
-- Returns whether one in the line has another action: which of them is delivered, the chain says later.
WITH joined AS (
    INSERT INTO herald.candidates (delivery_id, rank, transaction_hash, position, action, identity_registry, order_seq, job, secret_headers)
    SELECT $1, 1 + greatest(d.candidate_rank, (SELECT max(rank) FROM herald.candidates WHERE delivery_id = $1)), $2::text, $3::bytea,
           $4::bytea, $5::text, $6::text::numeric, $7::jsonb, $8::bytea
      FROM herald.deliveries d WHERE d.id = $1
    ON CONFLICT (delivery_id, position) DO NOTHING
)
SELECT EXISTS (SELECT FROM herald.candidates WHERE delivery_id = $1 AND action <> $4)
