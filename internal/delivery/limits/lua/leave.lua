-- Gives a place back and tells how the call went. The rules are those of machine.go (leave).
--
-- KEYS[1]  hash, the origin's state (enter.lua)
-- KEYS[2]  sorted set, its places
-- ARGV[1]  now in µs, 0: Redis' own TIME
-- ARGV[2]  token
-- ARGV[3]  result: 0 neutral, 1 ok, 2 failed
-- ARGV[4]  µs that the call took, 0: not known
-- ARGV[5]  µs of one of the window's ten buckets
-- ARGV[6]  least calls in the window, ARGV[7] least share of failed ones, for the breaker to open
-- ARGV[8]  µs that the breaker stays open
-- ARGV[9]  TTL of KEYS[1] in ms
-- Returns  {known, state, left}: known 0: the token holds no place, and nothing was done (so a call may be repeated);
--          state of the breaker afterwards 0 closed, 1 open, 2 half-open; left: µs that it stays open
-- TTLs     KEYS[1] is given its TTL anew; KEYS[2] keeps its own.

local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local token, result, took = ARGV[2], ARGV[3], tonumber(ARGV[4])
local size, min_calls, ratio, open_for = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function int(x) return string.format('%.0f', x) end

-- The whole window is only looked at after a failure.
local n = math.floor(now / size)
local at = n % 10
local s
if result == '2' then
  s = redis.call('HMGET', KEYS[1], 'open', 'probe', 'mean', 'b0', 'b1', 'b2', 'b3', 'b4', 'b5', 'b6', 'b7', 'b8', 'b9')
else
  s = redis.call('HMGET', KEYS[1], 'open', 'probe', 'mean', 'b' .. int(at))
end
local open, probe, mean = tonumber(s[1] or 0), s[2] or '', tonumber(s[3] or 0)
if open > now + 2 * open_for then open = now end -- see enter.lua

local known = redis.call('ZREM', KEYS[2], token)
if known == 1 then
  local fields = {}
  local function set(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
  if took > 0 then
    if mean == 0 then mean = took else mean = math.floor((4 * mean + took) / 5) end
  end
  if open > 0 then
    if token == probe then
      set('probe', '')
      if result == '1' then
        -- The endpoint is well: what was learnt while it was not is forgotten.
        redis.call('DEL', KEYS[1])
        open, mean = 0, took
      elseif result == '2' then
        open = now + open_for
        set('open', int(open))
      end
    end
  elseif result ~= '0' then
    local calls, failed = 1, 0
    if result == '2' then failed = 1 end
    -- parse gives what bucket b counted, if its number is from..n.
    local function parse(b, from)
      if not b then return 0, 0 end
      local bn, bc, bf = string.match(b, '^(%d+):(%d+):(%d+)$')
      bn = tonumber(bn)
      if bn < from or bn > n then return 0, 0 end
      return tonumber(bc), tonumber(bf)
    end
    local mine = s[4]
    if result == '2' then mine = s[4 + at] end
    local c, f = parse(mine, n)
    calls, failed = calls + c, failed + f
    set('b' .. int(at), int(n) .. ':' .. int(calls) .. ':' .. int(failed))
    if result == '2' then
      for i = 0, 9 do
        if i ~= at then
          c, f = parse(s[4 + i], n - 9)
          calls, failed = calls + c, failed + f
        end
      end
      if calls >= min_calls and failed / calls >= ratio then
        open = now + open_for
        set('open', int(open))
      end
    end
  end
  if mean > 0 then set('mean', int(mean)) end
  if #fields > 0 then
    redis.call('HSET', KEYS[1], unpack(fields))
    redis.call('PEXPIRE', KEYS[1], ARGV[9])
  end
end

if open == 0 then return {known, 0, 0} end
if now < open then return {known, 1, open - now} end
return {known, 2, 0}
