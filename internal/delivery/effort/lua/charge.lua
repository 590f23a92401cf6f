-- Adds what one worker spent on an agent to what all workers did, and tells how much of it is not refilled yet. The rules are those
-- of bucket.go; the conformance suite holds the two to the same answers.
--
-- KEYS[1]  string: at mean calls connections listings fetches. at is when the four were so much; all in µs.
--          (the key is a hash of the agent)
-- ARGV[1]  now in µs, 0: Redis' own TIME (tests give theirs)
-- ARGV[2]  µs of effort that are refilled in a µs
-- ARGV[3]  TTL in ms
-- ARGV[4]  mean of the agent's latest attempts, as the worker knows it; 0: it does not
-- ARGV[5]  1: add; 0: only tell
-- ARGV[6]  to ARGV[9]: what was spent since the worker added last, by what it went for
-- ARGV[10] to ARGV[13]: all that the worker knows of, which counts instead when nothing is stored: Redis was emptied
-- Returns  {mean, calls, connections, listings, fetches} as text
-- TTL      given anew with each addition. It is not safe to repeat: who does not know whether an addition was made may count twice.

local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local refill, mean, add = tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[5] == '1'

local at, known, parts = now, 0, {0, 0, 0, 0}
local stored = redis.call('GET', KEYS[1])
if stored then
  local a, m, c, o, l, f = string.match(stored, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  local numbers = {tonumber(a), tonumber(m), tonumber(c), tonumber(o), tonumber(l), tonumber(f)}
  stored = #numbers == 6
  for i = 2, #numbers do -- what nothing can have cost was written by somebody else
    stored = stored and numbers[i] >= 0 and numbers[i] <= 3600e6
  end
  if stored then
    at, known, parts = numbers[1], numbers[2], {numbers[3], numbers[4], numbers[5], numbers[6]}
  end
end

local back, used = (now - at) * refill, parts[1] + parts[2] + parts[3] + parts[4]
if back >= used then
  parts = {0, 0, 0, 0}
elseif back > 0 then
  local keep = 1 - back / used
  for i = 1, 4 do parts[i] = parts[i] * keep end
end
if mean == 0 then mean = known end

local function num(x) return string.format('%.17g', x) end
if add then
  for i = 1, 4 do
    if stored then
      parts[i] = parts[i] + tonumber(ARGV[5 + i])
    else
      parts[i] = tonumber(ARGV[9 + i])
    end
  end
  redis.call('SET', KEYS[1], table.concat({num(now), num(mean), num(parts[1]), num(parts[2]), num(parts[3]), num(parts[4])}, ' '),
    'PX', ARGV[3])
end
return {num(mean), num(parts[1]), num(parts[2]), num(parts[3]), num(parts[4])}
