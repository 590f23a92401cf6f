-- Puts back what a worker took and did not commit: into the list, where it came from, in its order.
--
-- KEYS     as of take.lua, of the worker in question
-- ARGV[1]  its id
-- ARGV[2]  most elements that are moved
-- ARGV[3]  itself: the worker leaves; empty: somebody else asks, and nothing is done while the worker lives
-- ARGV[4]  token of the batch that was committed and is not acknowledged yet; empty: there is none
-- ARGV[5]  how many elements that batch has
-- Returns  how many were moved; -1: it lives

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
