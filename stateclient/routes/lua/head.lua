-- A route field is  version|epoch|conn_id|incarnation|generation|...  and every version keeps this head. Epochs and
-- connection ids are 64 bit and stay strings: a double would round them.
local function parse(value)
  local epoch, owner, generation = string.match(value, '^%d+|(%d+)|(%d+|[^|]*)|(%d+)|')
  return epoch or '0', owner or '', generation or ''
end
