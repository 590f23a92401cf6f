-- Releases a permit and records the call's result. The rules are those of machine.go (release) and breaker.go (countResult).
--
-- KEYS[1]  sorted set, the origin's permits (acquire.lua)
-- KEYS[2]  string, the endpoint (acquire.lua)
-- ARGV[1]  now in µs; 0: Redis' TIME
-- ARGV[2]  token
-- ARGV[3]  result: 0 neutral, 1 ok, 2 failed
-- ARGV[4]  duration of the call in µs; 0: unknown
-- ARGV[5]  length in µs of one of the window's ten buckets
-- ARGV[6]  minimum calls in the window, ARGV[7] minimum share of failed ones, at which the breaker opens
-- ARGV[8]  time in µs for which the breaker stays open
-- ARGV[9]  TTL of KEYS[2] in ms
-- Returns  {known, state, left}. known 0: the token holds no permit, and nothing was changed, so the script is safe to
--          repeat. state of the breaker afterwards: 0 closed, 1 open, 2 half-open. left: time in µs for which it stays open.
-- TTLs     KEYS[2] gets a new TTL. The TTL of KEYS[1] does not change.

local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local token, result, took = ARGV[2], ARGV[3], tonumber(ARGV[4])
local size, min_calls, ratio, open_for = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function int(x) return string.format('%.0f', x) end

local open, probe_until, line, mean, window, probe = 0, 0, 0, 0, '-', ''
local e = redis.call('GET', KEYS[2])
if e then
  local a, b, c, d, w, p = string.match(e, '^(%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  if a then
    open, probe_until, line, mean, window, probe = tonumber(a), tonumber(b), tonumber(c), tonumber(d), w, p
  end
end

local known = redis.call('ZREM', KEYS[1], token)
if known == 1 and (took > 0 or result ~= '0' or token == probe) then
  if took > 0 then
    if mean == 0 then mean = took else mean = math.floor((4 * mean + took) / 5) end
  end
  if open > 0 and token == probe then
    probe = ''
    if result == '1' then
      -- The endpoint works again: reset the statistics of the time when it failed.
      open, probe_until, line, mean, window = 0, 0, 0, took, '-'
    elseif result == '2' then
      open = now + open_for
    end
  elseif open == 0 and result ~= '0' then
    local n = math.floor(now / size)
    local bad = 0
    if result == '2' then bad = 1 end
    -- mine_calls and mine_failed count this bucket. calls and failed count the whole window, which ends with this bucket.
    local mine_calls, mine_failed, calls, failed, others = 1, bad, 1, bad, {}
    for bn, bc, bf in string.gmatch(window, '(%d+):(%d+):(%d+)') do
      local k, c, f = tonumber(bn), tonumber(bc), tonumber(bf)
      if k == n then
        mine_calls, mine_failed = mine_calls + c, mine_failed + f
      elseif k > n - 10 and k % 10 ~= n % 10 then
        others[#others + 1] = bn .. ':' .. bc .. ':' .. bf
      end
      if k <= n and k > n - 10 then
        calls, failed = calls + c, failed + f
      end
    end
    others[#others + 1] = int(n) .. ':' .. int(mine_calls) .. ':' .. int(mine_failed)
    window = table.concat(others, ',')
    if result == '2' and calls >= min_calls and failed / calls >= ratio then open = now + open_for end
  end
  redis.call('SET', KEYS[2], table.concat({int(open), int(probe_until), int(line), int(mean), window, probe}, ' '), 'PX', ARGV[9])
end

if open == 0 then return {known, 0, 0} end
if open > now + 2 * open_for then open = now end -- see acquire.lua
if now < open then return {known, 1, open - now} end
return {known, 2, 0}
