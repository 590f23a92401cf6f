-- reopen: insert the rows ROWS of history into work again. The numbers of their attempts and tasks continue.
INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, bulk, verified, bound, attempts,
       budget_base, fetch_failures, replays, dispatch, called, claim_no, order_hash, accepted_at, delays_until)
SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, bulk, verified, bound, attempts,
       budget_base, fetch_failures, replays, dispatch, called, claim_no, order_hash, accepted_at,
       {{delays_until ROWS}}
  FROM ROWS
RETURNING id
