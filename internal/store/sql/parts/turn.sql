-- turn: null if ROW need not wait for another delivery, else the time at which to decide again. That time is ten years
-- from now if another delivery puts ROW into the backlog when it ends (parts/release.sql). The transaction has locked
-- the agent.
--
-- ROW waits if, among the deliveries of its ordering key,
--   1. another one has the turn;
--   2. an earlier one delays it (delays_until), or is checked and in the backlog;
--   3. ROW is a revocation, and its feedback has not ended.
--
-- A response waits for its feedback only. An unchecked delivery is verified, but not bound to an event. It is
-- dispatched for its check, which needs no turn, and delays others for a short time only. An unchecked revocation waits
-- before its check. Unchecked deliveries that were accepted after ROW delay it until 30 s after its own acceptance:
-- otherwise false jobs, which a sender can repeat, could delay ROW one after the other.
CASE WHEN ROW.order_hash IS NULL THEN NULL
     WHEN ROW.kind = 'ResponseAppended' THEN {{open_feedback ROW}}
     WHEN ROW.verified AND NOT ROW.bound AND ROW.kind <> 'FeedbackRevoked' THEN NULL
     ELSE coalesce(
          (SELECT now() + interval '10 years' FROM herald.work o
            WHERE o.chain_id = ROW.chain_id AND o.identity_registry = ROW.identity_registry AND o.agent_id = ROW.agent_id
              AND o.place = 'out' AND o.turn AND o.order_hash = ROW.order_hash AND o.id <> ROW.id
            LIMIT 1),
          (SELECT least(o.delay_end, now() + interval '10 years')
             FROM (SELECT order_seq,
                          CASE WHEN (bound OR NOT verified) AND place = 'line' AND delays_until IS NOT NULL THEN timestamptz 'infinity'
                               WHEN verified AND NOT bound AND (accepted_at, seq) > (ROW.accepted_at, ROW.seq)
                                AND delays_until > ROW.accepted_at + interval '30 s' THEN ROW.accepted_at + interval '30 s'
                               ELSE delays_until END AS delay_end
                     FROM herald.work
                    WHERE order_hash = ROW.order_hash AND order_seq < ROW.order_seq AND place <> 'held') o
            WHERE o.delay_end > now()
            ORDER BY o.order_seq
            LIMIT 1),
          {{open_feedback ROW}}) END
