-- turn: turn the ring to the present. What leaves it is deleted, because its place in the ring comes again.

local present = floor(now / unit)
local turned = not head or present - 20 > low
if present - 20 > low then
  before, asked = present - 20 == low + 1 and asked or 0, 0
  for bucket = low, min(present - 21, low + 30) do promised = max(promised + add(bucket, -most), 0) end
  low = present - 20
end
local top, stop = low + 30, 0                          -- the last bucket that has tokens, and until when these count
local function leaves(n)                               -- how long it takes until n tokens have left the ring, us
  local left, bucket = 0, low
  while bucket <= top and left < n do
    local is, i = group(bucket)
    left, bucket = left + is[i], bucket + 1
  end
  return max((bucket + 20) * unit - now, 0)
end
local function total()
  while top >= low do
    local g = (top - top % 8) / 8 % 5
    if not parsed[g] and (own[g + 1] or none) == none then
      top = top - top % 8 - 1
    else
      local is, i = group(top)
      if is[i] ~= '0' then break end
      top = top - 1
    end
  end
  if top >= low then stop = floor(((top + 21) * unit + 999) / 1000) end
end
