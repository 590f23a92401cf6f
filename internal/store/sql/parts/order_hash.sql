-- order_hash: the hash of ROW's ordering key. For a response, which has none, the hash of its feedback's key.
CASE WHEN ROW.kind = 'ResponseAppended' THEN hashtextextended(ROW.identity_registry || ROW.order_key || '/' || ROW.order_seq || '#NewFeedback', 0)
     ELSE hashtextextended(ROW.identity_registry || ROW.order_key, 0) END
