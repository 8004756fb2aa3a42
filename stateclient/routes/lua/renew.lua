-- Renews a gateway's lease and returns the mark of the renewal that created it. A mark that differs from the one known
-- so far says that the lease was gone in between, even when the answer of the renewal that created it never arrived.
--   KEYS[1] gateway:<incarnation>
--   ARGV    1 mark of this renewal, 2 the value after it, 3 TTL in ms
local value = redis.call('GET', KEYS[1])
local mark = value and string.match(value, '^%d+|(%d+)|') or ARGV[1]
redis.call('SET', KEYS[1], '1|' .. mark .. '|' .. ARGV[2], 'PX', ARGV[3])
return mark
