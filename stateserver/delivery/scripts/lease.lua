-- Renews one StateServer's leases of shards, and its line in the books.
-- KEYS[1] unack:lease, a HASH:
--   epoch       a random name that is lost when Redis loses its data
--   doubt       the books may be wrong: count (see the audit)
--   s:<shard>   "instance until": who scans it, and until when
--   m:<inst>    until when the instance counts as there
--   n:<inst>    "pending at since": what it enrolled less what it settled, when it said so, and the time from which on
--               that is all it knows; n:gone sums up those not heard of for long
-- ARGV: instance, ttl in ms, shards, renew or leave, pending, doubt (say | clear | -), name for a new epoch, fold after ms,
--       since (0 = answers are still awaited)
-- Returns: epoch, doubt (1 or 0), pending over all, now, the earliest since of those that are there, then the shards that
-- the instance holds.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local function num(x) return string.format('%.0f', x) end
local me, ttl, shards, op = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local flat = redis.call('HGETALL', KEYS[1])
local all = {}
for i = 1, #flat, 2 do all[flat[i]] = flat[i + 1] end
local function set(field, value) all[field] = value; redis.call('HSET', KEYS[1], field, value) end
local function del(field) all[field] = nil; redis.call('HDEL', KEYS[1], field) end

if not all['epoch'] then set('epoch', ARGV[7]) end
if op == 'leave' then
  if all['m:' .. me] then del('m:' .. me) end
else
  -- Somebody may have counted without what this one saw before its pause.
  if not all['m:' .. me] and all['n:' .. me] then set('doubt', '1') end
  set('m:' .. me, num(now + ttl))
end
set('n:' .. me, ARGV[5] .. ' ' .. num(now) .. ' ' .. ARGV[9])
if ARGV[6] == 'say' then set('doubt', '1') end
if ARGV[6] == 'clear' and all['doubt'] then del('doubt') end

local live, sum, gone, since = 0, 0, tonumber(all['n:gone'] or '0'), now
local stale, folded = {}, {}
for field, value in pairs(all) do
  local kind = string.sub(field, 1, 2)
  if kind == 'm:' then
    if tonumber(value) < now then stale[#stale + 1] = field else live = live + 1 end
  elseif kind == 'n:' and field ~= 'n:gone' then
    local pending, at, from = string.match(value, '^(%S+) (%S+) (%S+)$')
    sum = sum + tonumber(pending)
    if tonumber(all['m:' .. string.sub(field, 3)] or '0') >= now then since = math.min(since, tonumber(from)) end
    if tonumber(at) + tonumber(ARGV[8]) < now then
      gone = gone + tonumber(pending)
      folded[#folded + 1] = field
    end
  end
end
sum = sum + tonumber(all['n:gone'] or '0')
-- An instance that left without a word may have had a last line that never got here.
for _, field in ipairs(stale) do del(field); set('doubt', '1') end
for _, field in ipairs(folded) do del(field) end
if #folded > 0 then set('n:gone', num(gone)) end

local share = 0
if op ~= 'leave' then share = math.ceil(shards / live) end
local mine, free = {}, {}
for shard = 0, shards - 1 do
  local field = 's:' .. shard
  local owner, untill = '', 0
  if all[field] then
    local o, u = string.match(all[field], '^(%S+) (%S+)$')
    owner, untill = o, tonumber(u)
  end
  if owner == me then
    if #mine < share then mine[#mine + 1] = shard else del(field) end
  elseif untill < now then
    free[#free + 1] = shard
  end
end
for _, shard in ipairs(free) do
  if #mine < share then mine[#mine + 1] = shard end
end
for _, shard in ipairs(mine) do set('s:' .. shard, me .. ' ' .. num(now + ttl)) end

local out = {all['epoch'], all['doubt'] and 1 or 0, num(sum), num(now), num(since)}
for _, shard in ipairs(mine) do out[#out + 1] = shard end
return out
