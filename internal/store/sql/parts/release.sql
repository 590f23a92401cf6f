-- release: put the deliveries that waited for one of ROWS, and may be called next, into their agents' backlogs. ROWS
-- are deliveries that ended or that wait or are held now; the transaction has locked their agents. Dispatch decides
-- under that lock whether they may be called.
--
-- Of the deliveries that wait (behind_earlier), the part finds for each of ROWS:
--   1. if it had the turn or ended: the next one of its ordering key (lowest index, feedback before its revocation);
--   2. if it is a feedback that ended: two responses that wait for it;
--   3. if it is a response: the next response that waits for its agent's other responses, and the next one that waits
--      for its feedback.
-- None of ROWS is released, although it may have waited: the delivery behind it would stay.
-- The conditions name status, not place: Postgres could answer place by reading all deliveries that wait.
released AS (
    UPDATE herald.work
       SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, updated_at = now()
     WHERE id = ANY(ARRAY(
           SELECT n.id
             FROM ROWS e
            CROSS JOIN LATERAL (
                  (SELECT id FROM herald.work n
                    WHERE e.kind <> 'ResponseAppended' AND (e.turn OR e.finished_at IS NOT NULL) AND order_hash = hashtextextended(e.identity_registry || e.order_key, 0)
                      AND status = 'waiting' AND reason = 'behind_earlier' AND handed_at IS NULL AND id <> ALL(ARRAY(SELECT id FROM ROWS))
                      AND (kind <> 'FeedbackRevoked' OR e.finished_at IS NOT NULL AND key = left(e.key, -length('#NewFeedback')) || '#FeedbackRevoked'
                           OR NOT ({{open_feedback n}}))
                    ORDER BY order_seq, kind DESC
                    LIMIT 1)
                  UNION ALL
                  (SELECT id FROM herald.work
                    WHERE e.kind = 'NewFeedback' AND e.finished_at IS NOT NULL AND order_hash = hashtextextended(e.identity_registry || e.key, 0)
                      AND status = 'waiting' AND reason = 'behind_earlier' AND handed_at IS NULL AND id <> ALL(ARRAY(SELECT id FROM ROWS))
                    ORDER BY order_seq LIMIT 2)
                  UNION ALL
                  (SELECT id FROM herald.work
                    WHERE e.kind = 'ResponseAppended' AND order_hash = {{responses_hash e}}
                      AND status = 'waiting' AND reason = 'behind_earlier' AND handed_at IS NULL AND id <> ALL(ARRAY(SELECT id FROM ROWS))
                    ORDER BY order_seq LIMIT 1)
                  UNION ALL
                  (SELECT id FROM herald.work
                    WHERE e.kind = 'ResponseAppended' AND order_hash = {{order_hash e}}
                      AND status = 'waiting' AND reason = 'behind_earlier' AND handed_at IS NULL AND id <> ALL(ARRAY(SELECT id FROM ROWS))
                    ORDER BY order_seq LIMIT 1)) n))
)
