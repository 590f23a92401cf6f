-- Acquires a permit of an origin for a call of one of its endpoints. If no permit is free, it returns the reason and the
-- wait. The rules are those of machine.go (acquire) and share.go. The conformance suite compares both implementations.
--
-- KEYS[1]  hash, the origin: tat; seen (the two endpoints called last, with the time of their last calls); wait (id, since,
--          asked and due of each waiting endpoint). Times in µs.
-- KEYS[2]  sorted set, the origin's permits: tokens, scored by the time in µs at which each permit expires
-- KEYS[3]  string, the endpoint: open probe_until line mean window probe. The window is n:calls:failed of each bucket, or -.
--          (All keys contain the origin's hash tag. No key contains a byte from a stranger.)
-- ARGV[1]  now in µs; 0: Redis' TIME (tests pass their own)
-- ARGV[2]  token: the endpoint's id, a space, the attempt
-- ARGV[3]  1: acquire a free permit; 0: acquire none
-- ARGV[4]  1: reserve a time to return if no permit is free; 0: reserve one only if the breaker is open
-- ARGV[5]  number of permits
-- ARGV[6]  µs between two calls at the full rate
-- ARGV[7]  burst, in calls
-- ARGV[8]  maximum time in µs until a permit expires
-- ARGV[9]  maximum time in µs for which the breaker stays open
-- ARGV[10] shortest wait in µs, ARGV[11] longest wait in µs
-- ARGV[12] presence, ARGV[13] slack, ARGV[14] recent: in µs, see machine.go (rules); ARGV[15] most waiting endpoints
-- ARGV[16] TTL of KEYS[1] and KEYS[3] in ms, ARGV[17] of KEYS[2]
-- ARGV[18] keptAfter, ARGV[19] length in µs of a bucket of the window: see machine.go (rules)
-- Returns  {code, wait, state, left}. code: 0 acquired, 1 acquired as the breaker's probe, 2 busy, 3 throttled, 4 open.
--          wait in µs: until the reserved time; without a reservation, until the rate allows the next call (3), or 0.
--          state of the breaker: 0 closed, 1 open, 2 half-open. left: time in µs for which it stays open.
-- TTLs     Each written key gets a new TTL. A repeated call with the token of a held permit acquires nothing more, but renews the
--          permit, so the script is safe to repeat.

local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local token, attempt, reserve = ARGV[2], ARGV[3] == '1', ARGV[4] == '1'
local me = string.match(token, '^(%S+) ')
local inflight, gap, burst = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local hold, open_for = tonumber(ARGV[8]), tonumber(ARGV[9])
local min_wait, max_wait = tonumber(ARGV[10]), tonumber(ARGV[11])
local presence, slack, recent = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local max_waiters, ttl, kept_after = tonumber(ARGV[15]), ARGV[16], tonumber(ARGV[18])

-- Lua prints large numbers with an exponent.
local function int(x) return string.format('%.0f', x) end

-- A time more than twice the possible maximum ahead was stored before the clock was set back. It is replaced, so that it
-- does not close an origin for an hour.
local function sane(x, most, instead)
  if x > now + 2 * most then return instead end
  return x
end

local o = redis.call('HMGET', KEYS[1], 'tat', 'seen', 'wait')
local tat = math.max(sane(tonumber(o[1] or 0), burst * gap, 0), now)

local e_open, e_probe_until, e_line, mean, window, probe = 0, 0, 0, 0, '-', ''
local e = redis.call('GET', KEYS[3])
if e then
  local a, b, c, d, w, p = string.match(e, '^(%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  if a then
    e_open, e_probe_until, e_line, mean, window, probe = tonumber(a), tonumber(b), tonumber(c), tonumber(d), w, p
  end
end
local function save_endpoint()
  redis.call('SET', KEYS[3], table.concat({int(e_open), int(e_probe_until), int(e_line), int(mean), window, probe}, ' '), 'PX', ttl)
end
local open, line = sane(e_open, open_for, now), sane(e_line, max_wait, 0)

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
  redis.call('ZADD', KEYS[2], int(now + hold), token)
  redis.call('PEXPIRE', KEYS[2], ARGV[17])
  if token ~= probe then return {0, 0, state, left} end
  e_probe_until = now + hold
  save_endpoint()
  return {1, 0, state, left}
end

-- Read the waiting endpoints, and when another endpoint was called last.
local waiting, mine = {}, nil
if o[3] then
  for id, since, asked, due in string.gmatch(o[3], '(%S+) (%d+) (%d+) (%d+)') do
    local w = {id = id, since = tonumber(since), asked = tonumber(asked), due = tonumber(due)}
    local far = now + 2 * max_wait
    if w.asked <= far and w.due <= far and
        ((w.asked > 0 and now <= w.asked + presence) or (w.due > 0 and now <= w.due + slack)) then
      waiting[#waiting + 1] = w
      if id == me then mine = w end
    end
  end
end
local function waits()
  local out = {}
  for _, w in ipairs(waiting) do
    if not w.gone then out[#out + 1] = table.concat({w.id, int(w.since), int(w.asked), int(w.due)}, ' ') end
  end
  return table.concat(out, ' ')
end
local id0, at0, id1, at1 = string.match(o[2] or '', '^(%S+) (%d+) ?(%S*) ?(%d*)$')
local at = at0
if id0 == me then at = at1 end
at = tonumber(at or 0) or 0
local shared = (at > 0 and at <= now + recent and now < at + recent) or #waiting > (mine and 1 or 0)

-- Count the permits of each endpoint, and the endpoints that have waited longer and for which a permit is reserved.
local free, held, elders = 0, {}, 0
if shared then
  local tokens = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(now + 2 * hold))
  free = inflight - #tokens
  for _, t in ipairs(tokens) do
    local id = string.match(t, '^(%S+) ')
    if id then held[id] = (held[id] or 0) + 1 end
  end
  local since, long = now, math.max(mean, gap)
  if mine then since = mine.since end
  for _, w in ipairs(waiting) do
    if w.id ~= me and w.since < since and now >= w.since + kept_after and (held[w.id] or 0) < free and
        ((w.asked > 0 and now <= w.asked + presence) or
         (long > presence and w.due > 0 and now >= w.due - long and now <= w.due + math.min(long, slack))) then
      elders = elders + 1
    end
  end
else
  free = inflight - redis.call('ZCOUNT', KEYS[2], '-inf', int(now + 2 * hold))
end

-- share returns the permits of an endpoint that shares the origin: one if all its calls in the window failed.
local function share()
  local bucket, calls, failed = math.floor(now / tonumber(ARGV[19])), 0, 0
  for n, c, f in string.gmatch(window, '(%d+):(%d+):(%d+)') do
    local k = tonumber(n)
    if k <= bucket and k > bucket - 10 then calls, failed = calls + tonumber(c), failed + tonumber(f) end
  end
  if calls > 0 and calls == failed then return math.min(free, 1) end
  return free
end

local code, wait = 0, 0
local turn = tat + gap * (1 + elders) - burst * gap
if state == 1 or (state == 2 and probe ~= '' and sane(e_probe_until, hold, 0) > now) then
  code = 4
elseif free <= elders or (shared and (held[me] or 0) >= share()) then
  code = 2
elseif turn > now then
  code, wait = 3, turn - now
elseif not attempt then
  code = 2
end

if code == 0 then
  redis.call('ZADD', KEYS[2], int(now + hold), token)
  redis.call('PEXPIRE', KEYS[2], ARGV[17])
  if state == 2 then
    code = 1
    probe, e_probe_until = token, now + hold
    save_endpoint()
  end
  local seen = me .. ' ' .. int(now)
  if id0 == me then
    if id1 ~= '' then seen = seen .. ' ' .. id1 .. ' ' .. at1 end
  elseif id0 then
    seen = seen .. ' ' .. id0 .. ' ' .. at0
  end
  local fields = {'tat', int(tat + gap), 'seen', seen}
  if mine then
    if line > now and #waiting < max_waiters then
      mine.since, mine.asked, mine.due = now, 0, line
    else
      mine.gone = true
    end
    fields[5], fields[6] = 'wait', waits()
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], ttl)
  return {code, 0, state, left}
end

local from, waiters, changed = now + min_wait, 1, false
if code == 4 then
  from = math.max(from, open)
  if mine then mine.gone, changed = true, true end
elseif attempt or reserve then
  changed = true
  if not mine and #waiting < max_waiters then
    mine = {id = me, since = now, asked = 0, due = 0}
    waiting[#waiting + 1] = mine
  end
  waiters = #waiting
end
if reserve or code == 4 then
  e_line = math.min(math.max(line, from) + math.max(gap * waiters, math.floor(mean / inflight) * math.min(waiters, inflight)),
    now + max_wait)
  wait = e_line - now
  save_endpoint()
end
if changed then
  if mine and not reserve then
    mine.asked = now + math.min(wait, max_wait)
  elseif mine then
    mine.asked = 0
    if mine.due >= now then mine.due = math.min(mine.due, e_line) else mine.due = e_line end
  end
  redis.call('HSET', KEYS[1], 'wait', waits())
  redis.call('PEXPIRE', KEYS[1], ttl)
end
return {code, wait, state, left}
