-- order_hash: the hash of ROW's ordering key, or of its feedback's key if ROW is a response.
CASE WHEN ROW.kind = 'ResponseAppended' THEN hashtextextended(ROW.identity_registry || ROW.order_key || '/' || ROW.order_seq || '#NewFeedback', 0)
     ELSE hashtextextended(ROW.identity_registry || ROW.order_key, 0) END
