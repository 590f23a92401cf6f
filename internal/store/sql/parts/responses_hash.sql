-- responses_hash: the order_hash of a response that waits because two other responses to ROW's agent are dispatched.
hashtextextended(ROW.identity_registry || '/' || ROW.chain_id || '/' || ROW.agent_id || '#responses', 0)
