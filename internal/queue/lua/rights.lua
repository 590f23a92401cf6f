-- Runs every command that Herald's and asynq's scripts use, and returns the first one that Redis refuses. A script runs
-- its commands with the rights of the user who calls it, also on keys that it does not declare.
--
-- KEYS     five names in one hash slot, which no other program uses. They do not exist afterwards
-- Returns  {command, error}; nothing if Redis refuses none

local s, h, l, m, z = unpack(KEYS)
for _, command in ipairs({
  {'SET', s, '1', 'EX', '60'}, {'SETEX', s, '60', '1'}, {'SETRANGE', s, '0', ''}, {'INCR', s}, {'GET', s}, {'MGET', s},
  {'GETRANGE', s, '0', '1'}, {'EXISTS', s}, {'MEMORY', 'USAGE', s}, {'EXPIREAT', s, '9999999999'}, {'EXPIRE', s, '60'},
  {'HSET', h, 'f', '1'}, {'HINCRBY', h, 'f', '1'}, {'HGET', h, 'f'}, {'HMGET', h, 'f'}, {'HGETALL', h}, {'HVALS', h},
  {'HDEL', h, 'f'},
  {'LPUSH', l, '1'}, {'RPUSH', l, '1'}, {'RPOPLPUSH', l, l}, {'LLEN', l}, {'LINDEX', l, '0'},
  {'LRANGE', l, '0', '1'}, {'RPOP', l}, {'LREM', l, '0', '1'},
  {'SADD', m, '1'}, {'SMEMBERS', m}, {'SISMEMBER', m, '1'}, {'SREM', m, '1'},
  {'ZADD', z, '1', 'a'}, {'ZCARD', z}, {'ZSCORE', z, 'a'}, {'ZMSCORE', z, 'a'}, {'ZRANGE', z, '0', '1'},
  {'ZREVRANGE', z, '0', '1'}, {'ZRANGEBYSCORE', z, '1', '2'}, {'ZREMRANGEBYSCORE', z, '2', '3'},
  {'ZREMRANGEBYRANK', z, '1', '2'}, {'ZREM', z, 'a'},
  {'DEL', s}, {'TIME'},
}) do
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then
    redis.pcall('DEL', s, h, l, m, z)
    return {command[1], answer.err}
  end
end
