-- note_stall: store in a chain's cursor since when its follower reads nothing, and why.
--
-- $1 chain   $2 follower   $3 since when, or null: it reads   $4 why
UPDATE herald.chain_cursors
   SET stalled_since = $3, stalled_why = $4
 WHERE chain_id = $1 AND follower = $2
