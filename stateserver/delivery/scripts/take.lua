-- Takes the due messages of one user for a resend: they are not due again for a while, so that a second scanner, or the
-- next pass, leaves them alone. Those that were resent often enough are removed.
-- ARGV: how many at most, for how many ms they are taken, resends at most.
-- Returns: the earliest resend that is left ('' = none), then for each message: msg_id, resends so far, its entry.
local now = now_ms()
local out = {''}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', num(now), 'LIMIT', 0, ARGV[1])) do
  local value = redis.call('HGET', KEYS[2], id)
  if not value then
    redis.call('ZREM', KEYS[1], id)
  else
    local resends = tonumber(redis.call('GET', KEYS[3] .. id) or '0')
    if resends >= tonumber(ARGV[3]) then
      forget({id})
    else
      redis.call('ZADD', KEYS[1], num(now + tonumber(ARGV[2])), id)
    end
    out[#out + 1] = id
    out[#out + 1] = resends
    out[#out + 1] = value
  end
end
out[1] = earliest()
return out
