-- Moves the hints of users that were looked at to their next resend, unless somebody touched them meanwhile. A hint is
-- in another slot than its user's entries, so an enrolment is two steps (hint, then entry) and a look may fall between
-- them. Therefore a hint whose user has no entries is first condemned: put off by a grace longer than any enrolment may
-- take, and marked by a fraction of 1/2048 that no touch leaves behind. Only when it comes up again untouched, and the
-- user still has no entries, it is removed.
-- KEYS[1] unack:due:<shard>   ARGV: grace in ms, then for each user: uid, score as read, next resend ('' = none)
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local condemned = 1 / 2048
for i = 2, #ARGV, 3 do
  local uid, read, next = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2]
  local score = tonumber(redis.call('ZSCORE', KEYS[1], uid) or '-1')
  if score == read then
    if next ~= '' then
      redis.call('ZADD', KEYS[1], next, uid)
    elseif score % 1 == condemned then
      redis.call('ZREM', KEYS[1], uid)
    else
      redis.call('ZADD', KEYS[1], string.format('%.11f', now + tonumber(ARGV[1]) + condemned), uid)
    end
  end
end
return 1
