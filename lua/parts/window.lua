-- window: find the open window. Its name is its end and a generation, which a Reset increases.

-- If the count or the end is lost, the ledger tells it: the count is not less than what accounts were charged.
if hend * 1000 > now and (stop == 0 or stop == hend) then
  stop = hend
  if used < sum then used, count = sum, false end
end
if stop * 1000 <= now then stop, used = 0, 0 end

local ms, gen, began, fresh, unknown = (now - now % 1000) / 1000, hgen, false, false, false
local after = now % 1000 > 0 and ms + 1 or ms
local longer = extend > 0 and after + extend > hold
if longer then hold = after + extend end
if hold > ms then want, need = 0, 0 else hold = 0 end  -- while the limit is held, a statement asks for nothing
local last = after + length + (length < 10000 and (length - length % 10) / 10 or 1000)  -- clocks of two servers may differ by that
if till == 0 then                                      -- a length of whole seconds ends at a whole second
  till = length % 1000 == 0 and ms - ms % 1000 + length or after + length
end
if stop > last then                                    -- our clock stepped back: starve no longer than a window
  stop, gen, began = till, math.max(gen + 1, ms), true
end

-- The client's window: is it the open one, and if not, does it run?
local same, runs, wend, wgen = false, false, 0, 0
if window == name and stop == hend and not began then
  same, wend, wgen = true, stop, gen
elseif window ~= '0' then
  wend, wgen = match(window, '^(%d+)%.?(%d*)$')
  wend, wgen = wend + 0, wgen == '' and 0 or wgen + 0
  runs = how % 32 >= 16 and wend * 1000 > now and wend <= last and wgen >= gen
end
if stop == 0 then
  if limiter ~= '' and runs then                       -- only its clients know this window
    stop, gen, used, began, unknown = wend, wgen, wused > wmine and wused or wmine, true, true
  elseif want > 0 or limiter == '' and need > 0 then
    stop, fresh, began = till, true, limiter ~= ''
    if began and not head and wend == stop then gen = wgen end
  end
elseif (limiter ~= '' or longer) and not began and hend ~= stop then
  if not head and wend == stop then gen = wgen end
  began, unknown = true, not head                      -- the ledger is lost, or another program opened the window
end

-- The head of a window that opens now. The fields of old ones stay, and are void by the name of their window.
if began then
  name = gen > 0 and format('%d.%d', stop, gen) or format('%d', stop)
  hend, hgen, sum, before, clients, exhausted, idle, out, calls, told, at = stop, gen, 0, clients, 0, 0, 0, 0, 0, 0, 0
  claimable = unknown and used or 0
end
local timed = stop ~= had or not count                 -- the count and the end are written anew
local lasts = stop + (length < 60000 and length or 60000)
if lasts < hold then lasts = hold end
local gone = (timed or began) and format('%d', lasts + 1000)  -- all keys at once: in a slot that moves, some alone serve nobody
