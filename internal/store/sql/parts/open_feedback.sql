-- open_feedback: null unless ROW is a revocation or a response whose feedback has not ended, else the time at which to
-- decide again. That is after 10 s if the feedback is listed under another agent: the check of one of them then corrects
-- the identity registry, and until then the end of the feedback does not release ROW. A replay of a feedback that was
-- called before counts as ended. The look-up is a scalar subquery, because Postgres could answer EXISTS from a hash of
-- all open deliveries.
CASE WHEN ROW.kind = 'ResponseAppended' OR ROW.key LIKE '%#FeedbackRevoked%' THEN
     (SELECT now() + CASE WHEN f.identity_registry = ROW.identity_registry THEN interval '10 years' ELSE interval '10 s' END
        FROM herald.work f
       WHERE (f.replays = 0 OR NOT f.called)
         AND f.id = (SELECT h.id FROM herald.history h WHERE herald.key_hash(h.key) = herald.key_hash(ROW.order_key || '/' || ROW.order_seq || '#NewFeedback'))) END
