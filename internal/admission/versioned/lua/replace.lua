-- Replaces the values of KEYS, unless another process has replaced one of them. A value begins with its version, 16
-- characters.
--
-- KEYS     in one hash slot
-- ARGV[1]  TTL of the written keys in ms
-- ARGV[2]  the version that the value of KEYS[1] must have, or '' if there must be no value; ARGV[3] the new value,
--          or '' if the value stays as it is; and so on for each further key
-- Returns  {time} if it replaced the values, otherwise {time, value, …}. time: of Redis, in µs since 1970. value: of
--          each key.
-- Safe to repeat: after a replacement, the versions differ.

local time = redis.call('TIME')
local values = redis.call('MGET', unpack(KEYS))
local same = true
for i = 1, #KEYS do
  local value, version = values[i] or '', ''
  if #value >= 16 then version = string.sub(value, 1, 16) end -- a shorter value is not Herald's, and counts as none
  if version ~= ARGV[2 * i] then same = false end
end
local now = time[1] * 1000000 + time[2]
if not same then return {now, unpack(values)} end
for i, key in ipairs(KEYS) do
  if ARGV[2 * i + 1] ~= '' then redis.call('SET', key, ARGV[2 * i + 1], 'PX', ARGV[1]) end
end
return {now}
