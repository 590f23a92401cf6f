-- responses_hash: the order_hash of responses to ROW's agent that wait because two other responses are dispatched.
hashtextextended(ROW.identity_registry || '/' || ROW.chain_id || '/' || ROW.agent_id || '#responses', 0)
