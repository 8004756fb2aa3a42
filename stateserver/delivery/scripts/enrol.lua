-- Enrols messages for one user. Doing it twice is harmless.
-- ARGV: most entries a user may have, then for each message: msg_id, delay in ms, seq, received, conv, owing. No message
-- comes twice.
-- Returns: pairs of (message, device) added, messages dropped as overflow, pairs dropped with them.
local now = now_ms()
local added, dropped, dropped_pairs = 0, 0, 0
local ids = {}
for i = 2, #ARGV, 6 do ids[#ids + 1] = ARGV[i] end
local known = redis.call('HMGET', KEYS[2], unpack(ids))
local values, scores = {}, {}
for n, id in ipairs(ids) do
  local i = 6 * n - 4
  local owing, received, before, keep = ARGV[i + 5], ARGV[i + 3], 0, false
  local old = known[n]
  if old then
    local _, old_received, _, old_owing = parse(old)
    before = owed(old_owing)
    if received == '0' then received = old_received end
    if holds(owing, '*') then
      -- An unknown lookup knows nothing that the entry does not know already.
      keep = true
    elseif holds(old_owing, '*') then
      owing = expanded(old_owing, owing)
    else
      for d in string.gmatch(old_owing, '[^,]+') do
        if not holds(owing, d) then owing = owing .. d .. ',' end
      end
    end
  end
  if not keep then
    local after = owed(owing)
    if after == 0 then
      forget({id})
    else
      values[#values + 1] = id
      values[#values + 1] = ARGV[i + 2] .. ' ' .. received .. ' ' .. ARGV[i + 4] .. ' ' .. owing
      scores[#scores + 1] = num(now + tonumber(ARGV[i + 1]))
      scores[#scores + 1] = id
    end
    added = added + after - before
  end
end
if #values > 0 then
  redis.call('HSET', KEYS[2], unpack(values))
  redis.call('ZADD', KEYS[1], unpack(scores))
end
local over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[1])
if over > 0 then
  -- The oldest are those with the lowest ids. Ids have up to 63 bits, so they are compared as text: a double would round.
  local all = redis.call('HKEYS', KEYS[2])
  table.sort(all, function(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end)
  local oldest = {}
  for i = 1, math.min(over, #all) do
    local _, _, _, owing = parse(redis.call('HGET', KEYS[2], all[i]))
    dropped = dropped + 1
    dropped_pairs = dropped_pairs + owed(owing)
    oldest[i] = all[i]
  end
  forget(oldest)
end
return {added, dropped, dropped_pairs}
