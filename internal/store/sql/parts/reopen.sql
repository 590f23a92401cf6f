-- reopen: insert the rows ROWS of history into work again. The numbers of their attempts and tasks continue.
INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, bulk, verified, bound, attempts,
       budget_base, fetch_failures, replays, dispatch, called, claim_no, order_hash, accepted_at, delays_until)
SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, bulk, verified, bound, attempts,
       budget_base, fetch_failures, replays, dispatch, called, claim_no, order_hash, accepted_at,
       CASE WHEN order_hash IS NULL OR kind NOT IN ('NewFeedback', 'ValidationResponse') THEN NULL
            WHEN bound OR NOT verified THEN timestamptz 'infinity' ELSE now() + interval '10 s' END
  FROM ROWS
RETURNING id
