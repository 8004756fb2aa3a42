-- How many pairs of (message, device) one user's entries hold.
local n = 0
for _, value in ipairs(redis.call('HVALS', KEYS[2])) do
  local _, _, _, owing = parse(value)
  n = n + owed(owing)
end
return n
