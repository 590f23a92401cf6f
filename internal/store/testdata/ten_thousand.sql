-- Ten thousand deliveries of a thousand agents, for tests of plans. Nine of ten are history. The others are queued,
-- dispatched, running, held, or waiting in Postgres or in Redis.
INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 8453, '0xaa', n FROM generate_series(1, 1000) n;

INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, finished_at)
    SELECT md5(n::text)::uuid, n::text, 'NewFeedback', 8453, '0xaa', 1 + n % 1000, n::text, n,
           CASE WHEN n % 10 > 0 THEN 'delivered' ELSE 'queued' END, CASE WHEN n % 10 > 0 THEN now() END
      FROM generate_series(1, 10000) n;

INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, status, reason, handed_at,
    	claim_no, claimed_at, lease_until, next_attempt_at, dispatch, attempts, accepted_at)
    SELECT id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, st, CASE WHEN st = 'held' THEN 'auth_required' END,
           CASE WHEN n % 7 < 4 THEN now() - interval '1 minute' END, n, CASE WHEN st = 'running' THEN now() END, now() + interval '1 minute', CASE WHEN st = 'waiting' THEN now() + interval '1 minute' END,
           1, 1, now() - n * interval '1 second'
      FROM (SELECT *, order_seq::int AS n, (ARRAY['queued', 'queued', 'running', 'waiting', 'held'])[1 + order_seq::int / 10 % 5] AS st
              FROM herald.history WHERE finished_at IS NULL) x;

INSERT INTO herald.attempts (delivery_id, number, started_at, stage, outcome)
    SELECT md5(n::text)::uuid, 1, now() - interval '1 s', 'call', 'delivered' FROM generate_series(1, 10000) n;
