-- lost: insert the running attempts of ROWS (id, attempts, claimed_at), whose claims the statement takes away. They
-- have no outcome, because a worker may be calling the agent. ROWS with a null claimed_at have no running attempt.
lost AS (
    INSERT INTO herald.attempts (delivery_id, number, started_at, stage)
    SELECT id, attempts, claimed_at, 'claim' FROM ROWS WHERE claimed_at IS NOT NULL
)
