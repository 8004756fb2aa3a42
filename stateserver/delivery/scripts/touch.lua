-- Says in a shard that users have a resend coming. A hint is only ever moved forward in time here; one that is early
-- enough already is moved by 1/1024 ms (exact in a double), so that whoever read it before sees that it was touched. See
-- raise.lua.
-- KEYS[1] unack:due:<shard>   ARGV: for each user: uid, delay in ms
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
for i = 1, #ARGV, 2 do
  local due = now + tonumber(ARGV[i + 1])
  local old = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if old and tonumber(old) <= due then due = math.floor(tonumber(old) * 1024 - 1) / 1024 end
  redis.call('ZADD', KEYS[1], string.format('%.10f', due), ARGV[i])
end
return #ARGV / 2
