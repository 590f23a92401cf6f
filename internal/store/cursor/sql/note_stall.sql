-- note_stall: store since when a cursor has read no blocks, and why.
--
-- $1 chain   $2 contracts   $3 backfill, or ''   $4 since when no blocks are read, or null: they are read   $5 why
UPDATE herald.chain_cursors
   SET stalled_since = $4, stalled_why = $5
 WHERE chain_id = $1 AND contracts = $2 AND backfill = $3
