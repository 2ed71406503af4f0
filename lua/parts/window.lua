-- window: find the open window. Its name is its end and a generation, which a Reset increases.

-- If the count or the end is lost, the ledger tells it: the count is not less than what accounts were charged.
if hend * 1000 > now and (stop == 0 or stop == hend) then
  stop = hend
  if used < sum then used = sum end
end
if stop * 1000 <= now then stop, used = 0, 0 end

local ms, gen, began, runs, open, fresh, unknown = floor(now / 1000), hgen, false, false, true, false, false
local last = ceil(now / 1000) + length + (length < 10000 and floor(length / 10) or 1000)  -- clocks of two servers may differ by that
local function ends()                                  -- a length of whole seconds ends at a whole second
  if begins > 0 then return till end
  return length % 1000 == 0 and floor(now / 1000000) * 1000 + length or ceil(now / 1000) + length
end

if stop > last then                                    -- our clock stepped back: starve no longer than a window
  stop, gen, began = ends(), max(gen + 1, ms), true
end
if wend > 0 and how % 32 >= 16 then runs = wend * 1000 > now and wend <= last and wgen >= gen end
if stop == 0 then
  if limiter ~= '' and runs then                       -- only its clients know this window
    stop, gen, used, began, unknown = wend, wgen, max(wused, wmine), true, true
  elseif want > 0 or limiter == '' and need > 0 then
    stop, fresh, began = ends(), true, limiter ~= ''
    if began and not head and wend == stop then gen = wgen end
  else
    open = false
  end
elseif limiter ~= '' and not began and hend ~= stop then
  if not head and wend == stop then gen = wgen end
  began, unknown = true, not head                      -- the ledger is lost, or another program opened the window
end

-- The head of a window that opens now. The fields of old ones stay, and are void by the name of their window.
if began then
  hend, hgen, sum, before, clients, exhausted, idle, out, calls, told, at = stop, gen, 0, clients, 0, 0, 0, 0, 0, 0, 0
  claimable = unknown and used or 0
end
