-- turn: turn the ring to the present.

local present = floor(now / unit)
local turned = not head or present - 20 > low
if present - 20 > low then
  before = present - 20 == low + 1 and asked or 0
  asked = 0
  for i = 1, min(present - 20 - low, #counts) do promised, used = max(promised - counts[i], 0), max(used - counts[i], 0) end
  local some = { }
  for i = present - 20 - low + 1, #counts do some[#some + 1] = counts[i] end
  counts, low = some, present - 20
end
present = low + 20
local stop = 0
local function leaves(n)                               -- how long it takes until n tokens have left the ring, us
  local left, i = 0, 0
  while i < #counts and (i == 0 or left < n) do
    i = i + 1
    left = left + counts[i]
  end
  return max((low + i + 20) * unit - now, 0)
end
local function total()                                 -- what counts no more, or not yet, has no text
  local n = #counts
  while n > 0 and counts[n] == '0' do counts[n], n = nil, n - 1 end
  stop = n > 0 and floor(((low + n + 20) * unit + 999) / 1000) or 0
end
