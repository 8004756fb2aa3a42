-- Lists the gateways whose lease stands, each with what is left of it in ms.
--   KEYS[1] gateways
--   ARGV    1 how many at most
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', '0', ARGV[1])
for i = 2, #found, 2 do found[i] = string.format('%.0f', tonumber(found[i]) - now) end
return found
