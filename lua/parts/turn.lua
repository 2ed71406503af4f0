-- turn: turn the ring to the present.

local present = floor(now / unit)
local turned = not head or present - 20 > low
if present - 20 > low then
  before = present - 20 == low + 1 and asked or 0
  asked = 0
  for i = 1, min(present - 20 - low, #counts) do promised = max(promised - counts[i], 0) end
  local some = { }
  for i = present - 20 - low + 1, #counts do some[#some + 1] = counts[i] end
  counts, low = some, present - 20
end
present = low + 20
local used, stop = 0, 0
local function total()
  while counts[1] and counts[#counts] == 0 do counts[#counts] = nil end
  used, stop = 0, 0
  for i = 1, #counts do
    used = min(used + counts[i], most)
    if counts[i] > 0 then stop = floor(((low + i + 20) * unit + 999) / 1000) end
  end
end
