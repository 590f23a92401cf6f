-- advance_cursor: move a chain's cursor on, or back to what a reorg replaced. It goes first in the transaction that accepts the jobs of
-- what was read: who reads the same chain at the same time waits for it, and then finds no row.
--
-- $1 chain   $2 follower   $3 how often it had moved, as its owner knows it   $4 next block from now on   $5 blocks jsonb   $6 head
UPDATE herald.chain_cursors
   SET next_block = $4, blocks = $5, head_block = $6, moves = moves + 1, updated_at = now()
 WHERE chain_id = $1 AND follower = $2 AND moves = $3
RETURNING moves
