-- turn: turn the ring to the present. What leaves it is deleted, because its place in the ring comes again.

local turned = not head or present - 20 > low
if present - 20 > low then
  before, asked = present - 20 == low + 1 and asked or '0', '0'
  for bucket = low, min(present - 21, ring.top) do promised = max(promised + add(bucket, -most), 0) end
  low = present - 20
  ring.low, ring.shrunk = low, false
end
present = low + 20
