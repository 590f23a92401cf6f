-- note_stall: keep with a chain's cursor since when nothing is read, and why.
--
-- $1 chain   $2 follower   $3 since when, or null: it is read   $4 why
UPDATE herald.chain_cursors
   SET stalled_since = $3, stalled_why = $4
 WHERE chain_id = $1 AND follower = $2
