-- claim: fence one delivery for one worker and write the intent to call, in one statement and one commit.
--
-- $1 delivery id   $2 n, the task's dispatch counter   $3 lease (interval)   $4 tolerance for clock differences (interval)
--
-- Takes the row only when the task is the newest one (dispatch = n) and the row is ready: queued, or waiting and due. The
-- attempt is counted and its row made here, so that a process which dies during the call leaves a trace. All times are
-- Postgres'. Returns no row when refused: another worker has it, the task is old, or it is not due yet.
WITH claimed AS (
    UPDATE herald.deliveries
       SET status      = 'running',
           reason      = NULL,
           claim_no    = nextval('herald.claim_no'),
           lease_until = now() + $3::interval,
           handed_at   = coalesce(handed_at, now()),
           attempts    = attempts + 1,
           updated_at  = now()
     WHERE id = $1
       AND dispatch = $2
       AND (status = 'queued' OR (status = 'waiting' AND next_attempt_at <= now() + $4::interval))
    RETURNING *
), attempt AS (
    INSERT INTO herald.attempts (delivery_id, number, started_at, stage)
    SELECT id, attempts, now(), 'claim' FROM claimed
)
SELECT c.claim_no, c.attempts, now() AS started_at, c.lease_until, c.job, c.secret_headers, c.key, c.created_at, c.called,
       coalesce(a.epoch, 0) AS epoch, coalesce(a.enabled, true) AS enabled
  FROM claimed c
  LEFT JOIN herald.agents a USING (chain_id, identity_registry, agent_id)
