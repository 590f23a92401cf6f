-- Takes a place at one origin, or says why there is none and when to come back. The rules are those of machine.go (enter);
-- the conformance suite holds the two to the same answers.
--
-- KEYS[1]  hash, the origin's state: tat open probe probe_until line mean b0..b9; times in µs
-- KEYS[2]  sorted set, its places: token, scored by the µs at which the place is free again whatever happens
--          (both keys carry the same hash tag; neither holds a byte that a stranger chose)
-- ARGV[1]  now in µs, 0: Redis' own TIME (tests give theirs)
-- ARGV[2]  token
-- ARGV[3]  1: take a place if there is one; 0: take none
-- ARGV[4]  1: when there is none, reserve a time to come back; 0: only if the breaker is open
-- ARGV[5]  places
-- ARGV[6]  µs between two calls at the full rate
-- ARGV[7]  burst, in calls
-- ARGV[8]  µs that a place is held at most
-- ARGV[9]  µs that the breaker stays open at most
-- ARGV[10] µs of the shortest wait, ARGV[11] of the longest
-- ARGV[12] TTL of KEYS[1] in ms, ARGV[13] of KEYS[2]
-- Returns  {code, wait, state, left}: code 0 granted, 1 granted as the breaker's probe, 2 busy, 3 throttled, 4 open;
--          wait in µs: the reservation, or without one until the rate allows the next call (3) or 0;
--          state of the breaker 0 closed, 1 open, 2 half-open; left: µs that it stays open
-- TTLs     every key written is given its TTL anew. A token that holds a place is granted again and costs nothing, so a
--          call may be repeated.

local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local token, attempt, reserve = ARGV[2], ARGV[3] == '1', ARGV[4] == '1'
local inflight, gap, burst = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local hold, open_for = tonumber(ARGV[8]), tonumber(ARGV[9])
local min_wait, max_wait = tonumber(ARGV[10]), tonumber(ARGV[11])

-- Lua prints large numbers with an exponent.
local function int(x) return string.format('%.0f', x) end

local s = redis.call('HMGET', KEYS[1], 'tat', 'open', 'probe', 'probe_until', 'line', 'mean')
-- A time further ahead than twice what can be put there is from before the clock was set back: it must not close an origin
-- for an hour.
local function sane(x, most, instead)
  x = tonumber(x or 0)
  if x > now + 2 * most then return instead end
  return x
end
local tat, open = sane(s[1], burst * gap, 0), sane(s[2], open_for, now)
local probe, probe_until = s[3] or '', sane(s[4], hold, 0)
local line, mean = sane(s[5], max_wait, 0), tonumber(s[6] or 0)

local state, left = 0, 0
if open > 0 then
  if now < open then
    state, left = 1, open - now
  else
    state = 2
  end
end

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', int(now))
if attempt and redis.call('ZSCORE', KEYS[2], token) then
  if token == probe then return {1, 0, state, left} end
  return {0, 0, state, left}
end

local code, wait = 0, 0
if state == 1 or (state == 2 and probe ~= '' and probe_until > now) then
  code = 4
elseif redis.call('ZCOUNT', KEYS[2], '-inf', int(now + 2 * hold)) >= inflight then
  code = 2
elseif math.max(tat, now) + gap - now > burst * gap then
  code, wait = 3, math.max(tat, now) + gap - burst * gap - now
elseif not attempt then
  code = 2
end

if code == 0 then
  redis.call('ZADD', KEYS[2], int(now + hold), token)
  redis.call('PEXPIRE', KEYS[2], ARGV[13])
  local fields = {'tat', int(math.max(tat, now) + gap)}
  if state == 2 then
    code = 1
    fields = {fields[1], fields[2], 'probe', token, 'probe_until', int(now + hold)}
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], ARGV[12])
  return {code, 0, state, left}
end

if reserve or code == 4 then
  local from = now + min_wait
  if code == 4 then from = math.max(from, open) end
  line = math.min(math.max(line, from) + math.max(gap, math.floor(mean / inflight)), now + max_wait)
  wait = line - now
  redis.call('HSET', KEYS[1], 'line', int(line))
  redis.call('PEXPIRE', KEYS[1], ARGV[12])
end
return {code, wait, state, left}
