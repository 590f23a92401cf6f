-- Moves a worker's uncommitted elements back into the list, in their order.
--
-- KEYS     as in take.lua, for the same worker
-- ARGV[1]  the worker's id
-- ARGV[2]  maximum number of elements to move
-- ARGV[3]  not empty: the worker itself stops; empty: another worker calls, and nothing is done while the worker is alive
-- ARGV[4]  token of the batch that was committed and is not acknowledged yet; empty: none
-- ARGV[5]  number of elements in that batch
-- Returns  the number of moved elements; -1: the worker is alive

if ARGV[3] == '' and redis.call('EXISTS', KEYS[4]) == 1 then return -1 end
if ARGV[4] ~= '' and redis.call('HGET', KEYS[3], ARGV[1]) == ARGV[4] then
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('LTRIM', KEYS[2], 0, -1 - tonumber(ARGV[5]))
end
local moved = 0
while moved < tonumber(ARGV[2]) and redis.call('LMOVE', KEYS[2], KEYS[1], 'LEFT', 'RIGHT') do
  moved = moved + 1
end
if redis.call('LLEN', KEYS[2]) == 0 then
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('DEL', KEYS[4])
end
return moved
