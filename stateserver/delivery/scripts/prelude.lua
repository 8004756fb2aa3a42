-- What all scripts of the resend table share. Every script works on the keys of one user, which share one slot:
--   KEYS[1] unack:uid:{uid}    ZSET, msg_id by the time of its next resend (ms of Redis time)
--   KEYS[2] unack:meta:{uid}   HASH, msg_id -> "seq received conv owing"
--   KEYS[3] retry:cnt:{uid}:   the prefix of the counters of resends; with a msg_id behind it, it stays in the same slot
-- owing is ",phone,tablet," or, when the devices are not known yet, ",*," followed by "!device," for each device that is
-- known not to owe. No id can hold a space, a comma, a star or an exclamation mark.

-- Scores and counters are written with %.0f: Lua would print large numbers with an exponent.
local function num(x) return string.format('%.0f', x) end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function parse(value) return string.match(value, '^(%d+) (%d+) (%S+) (%S+)$') end

local function holds(owing, device) return string.find(owing, ',' .. device .. ',', 1, true) ~= nil end

-- Unknown devices count as one until they are known.
local function owed(owing)
  local n = 0
  for d in string.gmatch(owing, '[^,]+') do
    if string.sub(d, 1, 1) ~= '!' then n = n + 1 end
  end
  return n
end

local function without(owing, device)
  local from, to = string.find(owing, ',' .. device .. ',', 1, true)
  if not from then return owing end
  return string.sub(owing, 1, from) .. string.sub(owing, to + 1)
end

local function forget(ids)
  if #ids == 0 then return end
  redis.call('ZREM', KEYS[1], unpack(ids))
  redis.call('HDEL', KEYS[2], unpack(ids))
  local counters = {}
  for i, id in ipairs(ids) do counters[i] = KEYS[3] .. id end
  redis.call('DEL', unpack(counters))
end

-- The devices of list that an entry with unknown devices does not exclude.
local function expanded(owing, list)
  local out = ','
  for d in string.gmatch(list, '[^,]+') do
    if not holds(owing, '!' .. d) then out = out .. d .. ',' end
  end
  return out
end

-- The earliest resend of the user, or '' when nothing is left.
local function earliest()
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if first[2] then return num(tonumber(first[2])) end
  return ''
end
