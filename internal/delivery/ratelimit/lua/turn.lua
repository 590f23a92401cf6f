-- Gives a call its turn at an agent that wants no more than so many a second, or says when to come back. The rules are those of
-- turns.go (turns.take); TestTurnsAgree holds the two to the same answers.
--
-- KEYS[1]  string, the agent's turns: last line (µs), when the call given last was to begin, and the last time that was reserved
-- ARGV[1]  now in µs, 0: Redis' own TIME (tests give theirs)
-- ARGV[2]  µs between two calls
-- ARGV[3]  1: it comes back at a time that was reserved for it; 0: it comes for the first time
-- ARGV[4]  µs that a call may be told to wait in its place, ARGV[5] µs of the longest reservation
-- ARGV[6]  a turn that was given and is not used: it is given back, and nothing else is done; 0: none
-- Returns  {given, wait, at}: given 1: it calls in wait µs; 0: it comes back in wait µs, which are reserved for it unless they are
--          those of the longest reservation; at: when a turn that is given begins
-- TTL      what the state says about the time to come, and a minute.

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
-- What lies further ahead than can be put there is from before the clock was set back.
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
