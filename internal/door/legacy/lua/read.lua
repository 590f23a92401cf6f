-- Removes committed elements from the list, and returns the oldest of the others to the worker that reads the list.
--
-- KEYS[1]   list into which the old backend puts its jobs with LPUSH: the oldest is the rightmost
-- KEYS[2]   id of the worker that reads the list, a string that expires
-- ARGV[1]   the caller's id
-- ARGV[2]   how long the caller then reads the list, in ms; 0: it stops
-- ARGV[3]   maximum number of elements
-- ARGV[4]   size in bytes from which no more elements are returned
-- ARGV[5]   maximum number of bytes returned of one element
-- ARGV[6…]  SHA-1 of each element that the caller has committed, the oldest first
-- Returns   {length of the list, SHA-1 of the oldest element, its length, its first bytes, …}; only the length of the
--           list if another worker reads
--
-- Redis may run a script long after its caller gave up, and another program may take elements. So the script removes an
-- element only if it has the content of a committed one. The removal precedes the write that a Redis without memory
-- refuses.

for i = 6, #ARGV do
  local oldest = redis.call('LINDEX', KEYS[1], -1)
  if not oldest or redis.sha1hex(oldest) ~= ARGV[i] then break end
  redis.call('RPOP', KEYS[1])
end
local answer = {redis.call('LLEN', KEYS[1])}
local reader = redis.call('GET', KEYS[2])
if reader and reader ~= ARGV[1] then return answer end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[2])
  return answer
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local bytes = 0
for i = 1, tonumber(ARGV[3]) do
  local element = bytes < tonumber(ARGV[4]) and redis.call('LINDEX', KEYS[1], -i)
  if not element then break end
  bytes = bytes + #element
  answer[#answer + 1] = redis.sha1hex(element)
  answer[#answer + 1] = #element
  answer[#answer + 1] = string.sub(element, 1, tonumber(ARGV[5]))
end
return answer
