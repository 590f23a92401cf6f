-- revive_revocations: queue revocations again that were skipped (never_delivered), because their feedback had ended
-- without a call. Now the feedback is queued again, so it may be called. The transaction has locked the agent.
--
-- $1 ids uuid[] of feedback
WITH revived AS (
    UPDATE herald.history r
       SET status = 'queued', reason = NULL, error = NULL, finished_at = NULL, budget_base = r.attempts, accepted_at = now(), updated_at = now()
     WHERE herald.key_hash(r.key) = ANY(ARRAY(SELECT herald.key_hash(left(f.key, -length('#NewFeedback')) || '#FeedbackRevoked') FROM herald.history f
                              WHERE f.id = ANY($1) AND f.kind = 'NewFeedback' AND f.finished_at IS NULL))
       AND r.job IS NOT NULL AND r.status = 'skipped' AND r.reason = 'never_delivered'
    RETURNING r.*
)
{{reopen revived}}
