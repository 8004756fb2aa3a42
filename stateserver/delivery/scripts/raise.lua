-- Moves the hints of users that were looked at to their next resend, and removes those of users without entries, unless
-- somebody touched them since they were read. An enrolment touches the hint after it wrote the entry. So either the look
-- saw the entry, or the touch came after the look's reading of the hint: then the score differs, or the touch comes
-- after this script and brings the hint back.
-- KEYS[1] unack:due:<shard>   ARGV: for each user: uid, score as read, next resend ('' = none)
for i = 1, #ARGV, 3 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    if ARGV[i + 2] == '' then
      redis.call('ZREM', KEYS[1], ARGV[i])
    else
      redis.call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i])
    end
  end
end
return 1
