-- release: put deliveries that waited for one of ROWS into their agents' backlogs, if they may be next. ROWS are
-- deliveries that have ended, wait or are held now. The transaction has locked their agents. dispatch.sql then decides
-- under that lock whether a released delivery may be called.
--
-- For each of ROWS, the part releases these waiting deliveries (behind_earlier). Each has its order_hash:
--   1. the next one of its ordering key (lowest index, feedback before its revocation). If the row had no turn and has not
--      ended, because it was only checked, that one is released only if it waits without a time;
--   2. if the row is a feedback that ended: two responses that wait for it;
--   3. if the row is a response: the next response that waits for other responses to its agent, and the next one that
--      waits for its feedback.
--
-- Deliveries with the same index are released in the order of their acceptance: validations have no index but their
-- block number. Responses to different feedback are released in that order too. Otherwise a stranger could delay all other
-- responses by responses to the first feedback.
--
-- None of ROWS is released, although it may wait: the delivery behind it would stay. The index work_behind has the
-- deliveries that wait for another one, but not those in the backlog, where one client may have very many.
released AS (
    UPDATE herald.work
       SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, updated_at = now()
     WHERE id = ANY(ARRAY(
           SELECT n.id
             FROM ROWS e
            CROSS JOIN LATERAL (VALUES
                  (CASE WHEN e.kind <> 'ResponseAppended' THEN hashtextextended(e.identity_registry || e.order_key, 0) END, 1),
                  (CASE WHEN e.kind = 'NewFeedback' AND e.finished_at IS NOT NULL THEN hashtextextended(e.identity_registry || e.key, 0) END, 2),
                  (CASE WHEN e.kind = 'ResponseAppended' THEN {{responses_hash e}} END, 1),
                  (CASE WHEN e.kind = 'ResponseAppended' THEN {{order_hash e}} END, 1)) h(hash, most)
            CROSS JOIN LATERAL (
                  SELECT id FROM herald.work n
                   WHERE order_hash = h.hash AND (place || reason) = 'waitingbehind_earlier' AND id <> ALL(ARRAY(SELECT id FROM ROWS))
                     AND (kind = 'ResponseAppended'
                          OR (e.turn OR e.finished_at IS NOT NULL OR e.order_hash IS NOT NULL AND next_attempt_at > now() + interval '1 year')
                             AND (kind <> 'FeedbackRevoked' OR e.finished_at IS NOT NULL AND key = left(e.key, -length('#NewFeedback')) || '#FeedbackRevoked'
                                  OR coalesce({{open_feedback n}} < now() + interval '1 minute', true))) -- else the end of its feedback releases it
                   ORDER BY CASE kind WHEN 'ResponseAppended' THEN 0 ELSE order_seq END, kind DESC, seq -- matches the index work_behind
                   LIMIT h.most) n))
)
