-- grant: guided self-scheduling over what remains.

local rest, grant = limit - used, 0
if rest < 0 then rest = 0 end
if want > 0 and rest >= least then
  local target = want
  if how % 2 == 1 then
    if need > 0 and calls > 0 then target = need end   -- others may wait for what came back, too
  elseif want > need then                              -- else the client gets no more than it needs, and no less
    local floor, min, max = math.floor, math.min, math.max
    local peers = max(clients, before, 1)
    local base, share, divisor = limit / (20 * peers), 1 / peers, 1
    if base < 5 then base = 5 end
    if base > limit / (3 * peers) then base = limit / (3 * peers) end
    if limit < 15 then base = min(limit / peers, 1) end
    local part = 3 * rest / (peers > 6 and peers or 6)
    if base > part then base = part end
    base = floor(base)
    if same then                                       -- as much again as in a row, less what others got since
      part = min(run - max(used - wused, 0), rest - floor(rest / 8))
      if base < part then base = part end
    end
    if how % 4 >= 2 then                               -- what is idle there cannot be called: a hundredth of the limit in all
      base, share, divisor = floor(limit / ((pace > 0 and 100 or 1000) * peers)), 0, 1.25
    end
    if peers > 1 or divisor > 1 then                   -- else it may get all that remains
      local free = rest + floor((idle - spare) / 6)    -- some of what is idle elsewhere may come back
      part = free / limit
      local prior = max(max(floor(limit / 1000), 1) * part * part, base, 1)  -- the share of a client that has nothing yet
      part = mine                                      -- what it has, or would have had at its pace
      if pace > 0 then part = max(part, pace * (max(length - (stop * 1000 - now) / 1000, 0) / length)) end
      local top = max(floor(min(free * max(min((part + prior) / (used + prior * peers), 1), share) / divisor, most)), base, need)
      if target > top then target = top end
    end
  end
  if target > rest then target = rest end
  if target > most - mine then target = most - mine end
  grant = target
  used, mine, rest, sum = used + grant, mine + grant, rest - grant, sum + grant
  if sum > most then sum = most end
end
if rest == 0 and exhausted == 0 then exhausted = ms end
