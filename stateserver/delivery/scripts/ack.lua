-- Cumulative acks of one user's devices.
-- ARGV: for each ack: device, conv, seq.
-- Returns, for each pair of (message, device) that was settled: the number of its ack (from 0), received.
local out = {}
local all = redis.call('HGETALL', KEYS[2])
for k = 1, #all, 2 do
  local id, value = all[k], all[k + 1]
  local seq, received, conv, owing = parse(value)
  local changed = false
  for i = 1, #ARGV, 3 do
    local device = ARGV[i]
    if ARGV[i + 1] == conv and tonumber(seq) <= tonumber(ARGV[i + 2]) then
      if holds(owing, device) then
        owing = without(owing, device)
        changed = true
        out[#out + 1] = (i - 1) / 3
        out[#out + 1] = received
      elseif holds(owing, '*') and not holds(owing, '!' .. device) then
        -- The other devices are not known yet, but this one holds the message.
        owing = owing .. '!' .. device .. ','
        changed = true
      end
    end
  end
  if changed then
    if owed(owing) == 0 then
      forget(id)
    else
      redis.call('HSET', KEYS[2], id, seq .. ' ' .. received .. ' ' .. conv .. ' ' .. owing)
    end
  end
end
return out
