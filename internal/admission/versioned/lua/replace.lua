-- Replaces the values of KEYS, unless another process has replaced one of them. A value begins with its version, 16
-- characters that each replacement chooses at random.
--
-- KEYS     in one hash slot
-- ARGV[1]  TTL of the keys in ms
-- ARGV[2]  the version that the value of KEYS[1] must have, or '' if there must be no value; ARGV[3] the new value;
--          and so on for each further key
-- Returns  {time, replaced, value, …}. time: of Redis, in µs since 1970. replaced: 1 or 0. value: of each key before.
-- Safe to repeat: after a replacement, the versions differ.

local time = redis.call('TIME')
local values = redis.call('MGET', unpack(KEYS))
local replaced = 1
for i = 1, #KEYS do
  local value, version = values[i] or '', ''
  if #value >= 16 then version = string.sub(value, 1, 16) end -- a shorter value is not Herald's, and counts as none
  if version ~= ARGV[2 * i] then replaced = 0 end
end
if replaced == 1 then
  for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[2 * i + 1], 'PX', ARGV[1]) end
end
return {time[1] * 1000000 + time[2], replaced, unpack(values)}
