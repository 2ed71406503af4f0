-- grant: guided self-scheduling over what remains.

local rest = limit - used
if rest < 0 then rest = 0 end
if wrote and want > 0 and rest >= least + 0 then
  local target = want
  if how % 2 >= 1 then
    if need > 0 and calls > 0 then target = need end   -- others may wait for what came back, too
  else
    local peers = clients > before and clients or before
    if peers < 1 then peers = 1 end
    local base, share, divisor = limit / (20 * peers), 1 / peers, 1
    if base < 5 then base = 5 end
    if base > limit / (3 * peers) then base = limit / (3 * peers) end
    if limit < 15 then base = min(limit / peers, 1) end
    local part = 3 * rest / (peers > 6 and peers or 6)
    if base > part then base = part end
    base = floor(base)
    if wend == hend and wgen == hgen then              -- as much again as in a row, less what others got since
      part = min(run - max(used - wused, 0), rest - floor(rest / 8))
      if base < part then base = part end
    end
    if how % 4 >= 2 then                                       -- what is idle there cannot be called: a hundredth of the limit in all
      base, share, divisor = floor(limit / ((pace > 0 and 100 or 1000) * peers)), 0, 1.25
    end
    local free = rest + floor((idle - spare) / 6)      -- some of what is idle elsewhere may come back
    local part = free / limit
    local prior = max(max(floor(limit / 1000), 1) * part * part, base, 1)  -- the share of a client that has nothing yet
    part = mine                                        -- what it has, or would have had at its pace
    if pace > 0 then part = max(part, pace * (max(length - (stop * 1000 - now) / 1000, 0) / length)) end
    local top = max(floor(min(free * max(min((part + prior) / (used + prior * peers), 1), share) / divisor, most)), base)
    if pace == 0 and target < base then target = base end  -- a newcomer does not know its peers
    if top < need then top = need end
    if target > top then target = top end
  end
  if target > rest then target = rest end
  if target > most - mine then target = most - mine end
  grant = target
  used, mine, rest, sum = used + grant, mine + grant, rest - grant, min(sum + grant, most)
end

-- A statement without an account charges all that it needs, or what was used above a charge in its window.
if open and limiter == '' then
  if change > 0 then
    if wend == stop and wgen == gen then used = min(used + change, most) end
  elseif used + need <= limit then
    used, grant = used + need, need
  elseif fresh then                                    -- a window opens at its first charge
    stop, used = 0, 0
  end
  rest = max(limit - used, 0)
end
if wrote and exhausted == 0 and rest == 0 then exhausted = ms end
