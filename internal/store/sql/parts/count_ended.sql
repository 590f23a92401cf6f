-- count_ended: add the ended ones of ROWS to the totals of their agents, which the transaction has locked. Each agent is
-- found by its key in a LATERAL subquery: joined by their keys, all agents could be read whenever the statistics are old.
counted AS (
    UPDATE herald.agents g
       SET totals = totals || jsonb_build_object(e.status, coalesce((totals ->> e.status)::bigint, 0) + n), updated_at = now()
      FROM (SELECT chain_id, identity_registry, agent_id, status, count(*) AS n FROM ROWS WHERE finished_at IS NOT NULL GROUP BY 1, 2, 3, 4) e
     CROSS JOIN LATERAL (SELECT ctid AS found FROM herald.agents
                          WHERE chain_id = e.chain_id AND identity_registry = e.identity_registry AND agent_id = e.agent_id OFFSET 0) a
     WHERE g.ctid = a.found
)
