-- Acknowledges the previous batch and returns the next one: the elements of the worker's processing list. If that list is
-- empty, the script first moves the oldest elements of the list into it.
--
-- KEYS[1]  list into which the old backend puts its jobs with LPUSH: the oldest is the rightmost
-- KEYS[2]  processing list of this worker: its uncommitted elements, the oldest rightmost
-- KEYS[3]  hash from the workers' ids to the tokens of their batches
-- KEYS[4]  keep-alive key of the worker, a string that expires
-- ARGV[1]  the worker's id
-- ARGV[2]  TTL of the keep-alive key in ms
-- ARGV[3]  token of the committed batch; empty: none
-- ARGV[4]  number of elements in that batch
-- ARGV[5]  token of a new batch
-- ARGV[6]  maximum number of elements in a batch
-- ARGV[7]  size in bytes from which a batch gets no more elements
-- ARGV[8]  maximum number of bytes returned of one element
-- Returns  {token of the batch, length of the list, length of the oldest element, its first bytes, …}, oldest first
--
-- Redis may run a script long after its caller gave up. A late script changes nothing: a token acknowledges its batch only
-- once, and no element is moved while the processing list is not empty. The acknowledgement precedes the writes that a
-- Redis without memory refuses.

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
