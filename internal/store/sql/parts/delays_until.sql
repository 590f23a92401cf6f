-- delays_until: until when ROW, a delivery that is accepted now, delays later ones of its ordering key; null: it delays
-- none. An unchecked feedback delays them for 10 s. Revocations delay none, but a bound retraction does.
CASE WHEN ROW.order_hash IS NULL OR ROW.kind = 'ResponseAppended' OR ROW.kind = 'FeedbackRevoked' AND NOT (ROW.bound AND ROW.key LIKE '%#Retraction@%') THEN NULL
     WHEN ROW.bound OR NOT ROW.verified THEN timestamptz 'infinity'
     ELSE now() + interval '10 s' END
