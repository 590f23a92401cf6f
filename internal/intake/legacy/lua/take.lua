-- Acknowledges the batch before and gives the next one: what a worker's processing list holds, and if that is empty the
-- oldest elements of the list, which are moved into it.
--
-- KEYS[1]  list, where the old backend puts its jobs with LPUSH: the oldest is the rightmost
-- KEYS[2]  list, what this worker took and has not committed yet, the oldest rightmost
-- KEYS[3]  hash of the workers: id to the token of its batch
-- KEYS[4]  string that says that the worker lives, for a while
-- ARGV[1]  the worker's id
-- ARGV[2]  ms that it counts as alive from now
-- ARGV[3]  token of the batch that was committed; empty: none was
-- ARGV[4]  how many elements that batch had
-- ARGV[5]  token of a new batch
-- ARGV[6]  most elements of a batch
-- ARGV[7]  bytes after which no more are taken
-- ARGV[8]  bytes of one element that are answered
-- Returns  {token of the batch, length of the list, length of its first element, beginning of that, …}, the oldest first
--
-- Redis may run a script whose caller gave up long ago. A late one does nothing: a batch is acknowledged by its token,
-- once, and nothing is moved while there is something in the processing list. What acknowledges comes before what a Redis
-- without memory refuses.

local token = redis.call('HGET', KEYS[3], ARGV[1])
if token and token == ARGV[3] then
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('LTRIM', KEYS[2], 0, -1 - tonumber(ARGV[4]))
  token = false
end
redis.call('SET', KEYS[4], '1', 'PX', ARGV[2])
local most = tonumber(ARGV[6])
local empty = redis.call('LLEN', KEYS[2]) == 0
if empty or not token then
  token = ARGV[5]
  redis.call('HSET', KEYS[3], ARGV[1], token)
end
if empty then
  local bytes = 0
  for _ = 1, most do
    if bytes >= tonumber(ARGV[7]) then break end
    local element = redis.call('LMOVE', KEYS[1], KEYS[2], 'RIGHT', 'LEFT')
    if not element then break end
    bytes = bytes + #element
  end
end
local answer = {token, redis.call('LLEN', KEYS[1])}
local held = redis.call('LRANGE', KEYS[2], -most, -1)
for i = #held, 1, -1 do
  answer[#answer + 1] = #held[i]
  answer[#answer + 1] = string.sub(held[i], 1, tonumber(ARGV[8]))
end
return answer
