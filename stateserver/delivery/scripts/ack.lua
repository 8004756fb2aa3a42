-- Cumulative acks of one user's devices.
-- ARGV: for each ack: device, conv, seq.
-- Returns, for each pair of (message, device) that was settled: the number of its ack (from 0), received.
local out, done = {}, {}
local all = redis.call('HGETALL', KEYS[2])
for k = 1, #all, 2 do
  local id, value = all[k], all[k + 1]
  local seq, received, conv, owing
  local changed = false
  for i = 1, #ARGV, 3 do
    -- A look at the conversation first: taking an entry apart costs more.
    if string.find(value, ' ' .. ARGV[i + 1] .. ' ', 1, true) then
      if not seq then seq, received, conv, owing = parse(value) end
      if tonumber(seq) <= tonumber(ARGV[i + 2]) then
        local device = ARGV[i]
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
  end
  if changed then
    if owed(owing) == 0 then
      done[#done + 1] = id
    else
      redis.call('HSET', KEYS[2], id, seq .. ' ' .. received .. ' ' .. conv .. ' ' .. owing)
    end
  end
end
forget(done)
return out
