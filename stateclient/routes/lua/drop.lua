-- Deletes one route if it is still the one that is meant. Returns how many were deleted.
--   KEYS[1] route:uid:{uid}
--   ARGV    1 device, 2 conn_id|incarnation, 3 epoch or '' for any, 4 generation or '' for any
local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value then return 0 end
local epoch, owner, generation = parse(value)
if owner ~= ARGV[2] then return 0 end
if ARGV[3] ~= '' and epoch ~= ARGV[3] then return 0 end
if ARGV[4] ~= '' and generation ~= ARGV[4] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
