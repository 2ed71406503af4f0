-- window: find the open window. Its name is its end and a generation, which a Reset increases.

-- If the count or the end is lost, the ledger tells it: the count is not less than what accounts were charged.
if hend * 1000 > now and (stop == 0 or stop == hend) then
  stop = hend
  if used < sum then used = sum end
end
if stop * 1000 <= now then stop, used = 0, 0 end

local ms, gen, began = floor(now / 1000), hgen, false
local slack = length < 10000 and floor(length / 10) or 1000  -- clocks of two servers may differ by this
local last, ends = ceil(now / 1000) + length + slack, till
if begins == 0 then                                    -- a length of whole seconds ends at a whole second
  ends = length % 1000 == 0 and floor(now / 1000000) * 1000 + length or ceil(now / 1000) + length
end

-- The head of a window that opens now. The fields of old ones stay, and are void by the name of their window.
local function start()
  hend, hgen, before, began = stop, gen, clients, true
  sum, claimable, clients, exhausted, idle, out, calls, told, at = 0, 0, 0, 0, 0, 0, 0, 0, 0
end

if stop > last then                                    -- our clock stepped back: starve no longer than a window
  gen = max(gen + 1, ms)
  stop = ends
  start()
end
local runs = how % 32 >= 16 and wend * 1000 > now and wend <= last and wgen >= gen

-- Was this statement here before, or a later one?
if limiter ~= '' and field then
  if life < flife or life == flife and seq < fseq then return { 4, now } end
  if life == flife and seq == fseq then
    return { 0, now, fend, fgen, used, fmine, fgrant, fend == hend and fgen == hgen and clients or 0 }
  end
end

local open, fresh = true, false
if stop == 0 then
  if limiter ~= '' and runs then                       -- only its clients know this window
    stop, gen, used = wend, wgen, max(wused, wmine)
    start()
    claimable = used
  elseif want > 0 or limiter == '' and need > 0 then
    stop, fresh = ends, true
  else
    open = false
  end
end
if open and limiter ~= '' then
  if not head and not began then                       -- lost, or another program opened the window
    if wend == stop then gen = wgen end
    start()
    claimable = used
  elseif hend ~= stop then
    start()
  end
end
