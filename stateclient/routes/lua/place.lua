-- Places one connection of a user: a claim, or the audit's compare-or-restore.
--   KEYS[1] route:uid:{uid}
--   ARGV    1 'claim' or 'restore', 2 device, 3 conn_id|incarnation, 4 the value after them, 5 'multi' or 'single',
--           6 devices at most, 7 TTL in ms
--           claim:   8 age of the login when sent, 9 Redis time when sent (as the gateway reckons it), 10 age from which a
--                    claim is late, 11 delay from which it is refused; all in microseconds
--           restore: 8 epoch
-- Returns {'stale', now} and has done nothing, {'lost', now}, or {'set' or 'held', now, epoch, 'fresh' or 'late',
-- displaced device, its value, ...}.
local key, mode, device, owner = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local function whole(n) return string.format('%.0f', n) end

-- Decimals without leading zeros compare by length, then as text.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function successor(s)
  local i = #s
  while i > 0 and string.byte(s, i) == 57 do i = i - 1 end
  local zeros = string.rep('0', #s - i)
  if i == 0 then return '1' .. zeros end
  return string.sub(s, 1, i - 1) .. string.char(string.byte(s, i) + 1) .. zeros
end

local epoch, now, late = ARGV[8], '0', true
if mode == 'claim' then
  local t = redis.call('TIME')
  local micros = tonumber(t[1]) * 1000000 + tonumber(t[2])
  now = whole(micros)
  local delay = micros - tonumber(ARGV[9])
  if delay > tonumber(ARGV[11]) then return {'stale', now} end
  local age = tonumber(ARGV[8]) + math.max(delay, 0)
  late = age > tonumber(ARGV[10])
  epoch = whole(math.max(micros - age, 1))
end

-- Who stands there: this very connection, those in the same place, and the user's other devices.
local held, newest, rivals, others = nil, '0', {}, {}
local fields = redis.call('HGETALL', key)
for i = 1, #fields, 2 do
  local e, o = parse(fields[i + 1])
  local field = {device = fields[i], value = fields[i + 1], epoch = e}
  if less(newest, e) then newest = e end
  if field.device == device and o == owner then
    held = field
  elseif field.device == device or ARGV[5] == 'single' then
    rivals[#rivals + 1] = field
  else
    others[#others + 1] = field
  end
end
table.sort(others, function(a, b) return less(a.epoch, b.epoch) end)
local excess = #others - (tonumber(ARGV[6]) - 1)

if mode == 'claim' and held then
  -- Claimed again after an unknown outcome: the connection keeps the epoch that its first claim gave it.
  epoch = held.epoch
elseif not late and not less(newest, epoch) then
  epoch = successor(newest)
end
if late or held then
  -- No fresh login: it must be newer than everything it would displace.
  local lost = excess > 0 and not less(others[excess].epoch, epoch)
  for _, r in ipairs(rivals) do lost = lost or not less(r.epoch, epoch) end
  if lost then
    if held then redis.call('HDEL', key, device) end
    return {'lost', now}
  end
end

for i = 1, excess do rivals[#rivals + 1] = others[i] end
local value = '1|' .. epoch .. '|' .. owner .. '|' .. ARGV[4]
local result = {'set', now, epoch, late and 'late' or 'fresh'}
if held and held.value == value then result[1] = 'held' end
for _, r in ipairs(rivals) do
  result[#result + 1] = r.device
  result[#result + 1] = r.value
  if r.device ~= device then redis.call('HDEL', key, r.device) end
end
redis.call('HSET', key, device, value)
redis.call('PEXPIRE', key, ARGV[7])
return result
