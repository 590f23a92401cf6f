-- drop_agent_hours: what calls came to long ago is not kept, the oldest hours first.
--
-- $1 age (interval)   $2 at most this many
--
-- Nobody writes these rows any more: a record writes those of its own hour.
DELETE FROM herald.agent_hours
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM herald.agent_hours WHERE hour < now() - $1::interval ORDER BY hour LIMIT $2))
