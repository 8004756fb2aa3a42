-- A route field is  version|epoch|conn_id|incarnation|generation|...  and every version keeps this head. Epochs and
-- connection ids are 64 bit and stay strings: a double would round them. An epoch of more than 18 digits is nobody's: one
-- must always be able to grow within 63 bits.
local function parse(value)
  local epoch, owner, generation = string.match(value, '^%d+|(%d+)|(%d+|[^|]*)|(%d+)|')
  if not epoch or #epoch > 18 then epoch = '0' end
  return epoch, owner or '', generation or ''
end
