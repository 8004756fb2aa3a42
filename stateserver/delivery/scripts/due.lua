-- The users of a shard whose hint is past. KEYS[1] unack:due:<shard>   ARGV: how many at most
-- Returns: uid, score, uid, score ...
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, ARGV[1])
