-- idle: whether to call idle tokens back, and when tokens come.

local grant, ms, held = reply[7], (now - now % 1000) / 1000, 0          -- idle in this client, until it states again
local others, kind, sample, crowd, again, recalls, sent, mute, waits = 0, 0, 256, 32, false, 1, 0, 0, 0
if limiter ~= '' then
  if how % 4 < 2 and not leaving then
    if grant > need then held = grant - need end
    if wgen == hgen then held = held + widle end
    if held > most - (idle - spare) then held = most - (idle - spare) end
  end
  others, idle = idle - spare, idle - spare + held
  if called then out, at = max(out - 1, 0), ms end
  if gave and promised > 0 and ring.used < limit and hold == 0 then   -- those who were told to wait may come now
    kind, promised, rest, sample = 3, 0, limit - ring.used, 64
    crowd = rest > 32 and 32 or rest > 4 and rest or 4
  elseif need > grant then
    local bucket = floor(length / 20)
    if out > 0 and ms - at < floor(length / 20) then waits = out end  -- those who were called may still answer
    if others > 0 then                                 -- in vain, mostly, while tokens are short: so less and less often
      if ms - told > 2 * bucket then calls = 0 end
      told = ms
      if calls == 0 or ms - at >= floor(bucket / 4) * 2 ^ min(calls - 1, 5) then kind, out, recalls = 1, 0, calls + 1 end
    end
  end
end

local awaited, promise = 0, 0
if lacks then
  local short, first = max(need - grant, 0), limiter == '' and need or least
  if promised == 0 then                                -- else what is free is others'
    short, first = min(short, max(short - (limit - used), 1)), first - (limit - used)
  end
  first = min(short, first)
  awaited, promise = promised + max(first, 1), max(first, min(short, 1))
elseif used >= limit then
  awaited = 1
end
