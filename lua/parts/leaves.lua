-- leaves: how long it takes until so many tokens have left the ring, us.

local frees = 0
if awaited > 0 then
  local bucket = low
  while awaited > 0 and bucket <= top do
    local is = group(bucket)
    for i = bucket % 8 + 2, 9 do
      if is[i] ~= '0' then awaited = awaited - is[i] end
      bucket = bucket + 1
      if awaited <= 0 or bucket > top then break end
    end
  end
  frees = max((bucket + 20) * unit - now, 0)
end
if ring.bad then return redis.error_reply('BADSTATE the ring has counts that are none') end
