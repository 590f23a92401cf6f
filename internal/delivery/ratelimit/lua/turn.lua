-- Assigns a turn to a call at an agent that asked for a maximum rate, or returns the wait. The rules are those of turns.go
-- (turns.take). TestTurnsAgree compares both implementations.
--
-- KEYS[1]  string, the agent's turns: last, the start of the latest assigned turn, and line, the latest reserved time, in µs
-- ARGV[1]  now in µs; 0: Redis' TIME (tests pass their own)
-- ARGV[2]  µs between two calls
-- ARGV[3]  1: the call returns at a reserved time; 0: it asks for the first time
-- ARGV[4]  maximum wait in µs inside the worker, ARGV[5] longest reservation in µs
-- ARGV[6]  start of an assigned turn that is not used: it is released, and nothing else is done; 0: none
-- Returns  {given, wait, at}. given 1: the call starts in wait µs; 0: it returns in wait µs. That time is reserved for it,
--          unless it is the longest reservation. at: the start of the assigned turn.
-- TTL      until the latest time in the state, plus a minute.

local now = tonumber(ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local gap, again, inline, most, unused = tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

-- Lua prints large numbers with an exponent.
local function int(x) return string.format('%.0f', x) end

local last, line = 0, 0
local s = redis.call('GET', KEYS[1])
if s then
  local a, b = string.match(s, '^(%d+) (%d+)$')
  if a then last, line = tonumber(a), tonumber(b) end
end
-- A time further ahead than the possible maximum was stored before the clock was set back: ignore it.
if last > now + 2 * inline then last = 0 end
if line > now + 2 * most then line = 0 end

local function save()
  redis.call('SET', KEYS[1], int(last) .. ' ' .. int(line), 'PX', int(math.ceil((math.max(last + gap, line, now) - now) / 1000) + 60000))
end

if unused > 0 then
  if last == unused then
    last = math.max(last - gap, 0)
    save()
  end
  return {0, 0, 0}
end

local at = now
if last > 0 then at = math.max(now, last + gap) end
if at <= now + inline and (again or line <= now) then
  last = at
  save()
  return {1, at - now, at}
end
local slot = math.max(at, line + gap)
if slot > now + most then return {0, most, 0} end
line = slot
save()
return {0, slot - now, 0}
