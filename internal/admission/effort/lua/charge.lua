-- Adds the worker time that one worker charged to an agent to the sum of all workers, and returns the part that is not
-- refilled yet. The rules are those of bucket.go. The conformance suite compares both implementations.
--
-- KEYS[1]  string: at mean calls connections listings fetches response-fetches, in µs. at is the time of the sums.
--          (The key is a hash of the agent.)
-- ARGV[1]  now in µs; 0: Redis' TIME (tests pass their own)
-- ARGV[2]  refilled worker time in µs per elapsed µs
-- ARGV[3]  TTL in ms
-- ARGV[4]  mean of the agent's latest attempts according to the worker; 0: unknown
-- ARGV[5]  1: add the worker time; 0: only read
-- ARGV[6]  to ARGV[10]: worker time charged since the worker's last addition, by kind
-- ARGV[11] to ARGV[15]: all used worker time that the worker knows of, by kind: stored if Redis has no value (Redis was emptied)
-- Returns  {mean, calls, connections, listings, fetches, response fetches} as text
-- TTL      Each addition sets a new TTL. A repeated addition counts twice.

local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local refill, mean, add = tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[5] == '1'

local at, known, parts = now, 0, {0, 0, 0, 0, 0}
local stored = redis.call('GET', KEYS[1])
if stored then
  local a, m, c, o, l, f, r = string.match(stored, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  local numbers = {tonumber(a), tonumber(m), tonumber(c), tonumber(o), tonumber(l), tonumber(f), tonumber(r)}
  stored = #numbers == 7
  for i = 2, #numbers do -- an impossible sum was not written by Herald
    stored = stored and numbers[i] >= 0 and numbers[i] <= 3600e6
  end
  if stored then
    at, known, parts = numbers[1], numbers[2], {numbers[3], numbers[4], numbers[5], numbers[6], numbers[7]}
  end
end

local back, used = (now - at) * refill, parts[1] + parts[2] + parts[3] + parts[4] + parts[5]
if back >= used then
  parts = {0, 0, 0, 0, 0}
elseif back > 0 then
  local keep = 1 - back / used
  for i = 1, 5 do parts[i] = parts[i] * keep end
end
if mean == 0 then mean = known end

local function num(x) return string.format('%.17g', x) end
if add then
  for i = 1, 5 do
    if stored then
      parts[i] = parts[i] + tonumber(ARGV[5 + i])
    else
      parts[i] = tonumber(ARGV[10 + i])
    end
  end
  redis.call('SET', KEYS[1], table.concat({num(now), num(mean), num(parts[1]), num(parts[2]), num(parts[3]), num(parts[4]), num(parts[5])}, ' '),
    'PX', ARGV[3])
end
return {num(mean), num(parts[1]), num(parts[2]), num(parts[3]), num(parts[4]), num(parts[5])}
