-- open_feedback: whether ROW is a revocation or a response whose feedback has not ended. A replay of a feedback that
-- was called before counts as ended. The look-up is a scalar subquery, because Postgres could answer EXISTS from a hash
-- of all open deliveries.
CASE WHEN ROW.kind = 'ResponseAppended' OR ROW.key LIKE '%#FeedbackRevoked%' THEN coalesce(
     (SELECT f.replays = 0 OR NOT f.called FROM herald.work f
       WHERE f.id = (SELECT h.id FROM herald.history h WHERE herald.key_hash(h.key) = herald.key_hash(ROW.order_key || '/' || ROW.order_seq || '#NewFeedback'))), false)
     ELSE false END
