-- open_attempts: report whether a week's partition, WEEK, has attempts of open deliveries.
--
-- $1 all deliveries with an attempt in that week have a seq below this one
--
-- Few open deliveries are so old, because the others have expired. Strangers can make many later ones.
WITH open AS MATERIALIZED (
    SELECT id FROM herald.work WHERE seq < $1 AND attempts > 0 ORDER BY seq
)
SELECT EXISTS (SELECT FROM open CROSS JOIN LATERAL (SELECT FROM WEEK WHERE delivery_id = open.id LIMIT 1) a)
