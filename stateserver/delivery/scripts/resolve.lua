-- Says what a lookup or a push has shown of some messages of one user. An entry that is gone by now stays gone.
-- ARGV: for each message: msg_id, mode, delay in ms, gone, online.
--   mode   resend = a resend is about to be made: count it, the next comes after delay
--          sooner = the push failed: the next attempt comes after delay, or when it was due anyway
--          keep   = the schedule stands
--   gone   devices that are offline (",phone,"), or * for all
--   online the devices of an entry whose devices were not known
-- Returns: the earliest resend that is left ('' = none), pairs dropped as offline, pairs added, then for each message
-- the number of resends (-1 = it has no entry any more).
local now = now_ms()
local offline, added = 0, 0
local out = {'', 0, 0}
for i = 1, #ARGV, 5 do
  local id, mode, delay, gone, online = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
  local resends = -1
  local value = redis.call('HGET', KEYS[2], id)
  if value then
    local seq, received, conv, owing = parse(value)
    local before = owed(owing)
    local old = owing
    if gone == '*' then
      offline = offline + before
      owing = ','
    else
      if online ~= '' and holds(owing, '*') then
        owing = expanded(owing, online)
        if owed(owing) == 0 then
          offline = offline + 1
        else
          added = added + owed(owing) - 1
        end
      end
      for d in string.gmatch(gone, '[^,]+') do
        if holds(owing, d) then
          owing = without(owing, d)
          offline = offline + 1
        end
      end
    end
    if owed(owing) == 0 then
      forget({id})
    else
      if owing ~= old then
        redis.call('HSET', KEYS[2], id, seq .. ' ' .. received .. ' ' .. conv .. ' ' .. owing)
      end
      resends = tonumber(redis.call('GET', KEYS[3] .. id) or '0')
      if mode == 'resend' then
        resends = resends + 1
        redis.call('SET', KEYS[3] .. id, num(resends), 'EX', 86400)
        redis.call('ZADD', KEYS[1], num(now + delay), id)
      elseif mode == 'sooner' then
        local due = tonumber(redis.call('ZSCORE', KEYS[1], id) or '0')
        if due > now + delay then redis.call('ZADD', KEYS[1], num(now + delay), id) end
      end
    end
  end
  out[#out + 1] = resends
end
out[1], out[2], out[3] = earliest(), offline, added
return out
