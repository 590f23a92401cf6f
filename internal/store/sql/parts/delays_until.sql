-- delays_until: until when ROW, accepted now, delays later deliveries of its ordering key; null: it delays none. An
-- unchecked delivery delays them for 10 s, and again from its first claim (parts/claim.sql). Another one delays them
-- until it ends. Responses and revocations delay none, but a bound retraction does.
CASE WHEN ROW.order_hash IS NULL OR ROW.kind = 'ResponseAppended' OR ROW.kind = 'FeedbackRevoked' AND NOT (ROW.bound AND ROW.key LIKE '%#Retraction@%') THEN NULL
     WHEN ROW.bound OR NOT ROW.verified THEN timestamptz 'infinity'
     ELSE now() + interval '10 s' END
