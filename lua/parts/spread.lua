-- spread: grant tokens of the buckets in which the client will use them, while much is free.

local lacks, leaving = false, how % 16 >= 8
local soonest = floor((now + min(within, length * 250)) / unit)
local rest = max(limit - used, 0)
if limiter == '' then
  if need > 0 then
    lacks = used + need > limit
    if not lacks then give(soonest, need) end
  end
else
  if not left then clients = max(clients - 1, 0) end
  if not leaving then clients = clients + 1 end
  if want > 0 then
    local weight = max(pace, need, 1)
    if fasked ~= present then
      fasked, asked = present, min(asked + weight, most)
    end
    local from, to, begin, later = now, 0, soonest, after >= present
    if later then
      begin = max(begin, min(after + 1, present + 10))
      from = begin * unit
    end
    to = max(present + min(max(floor(rest / limit * 60 - 3), 0), 10), begin)
    local function use(a, b) return pace * ((b - a) / (length * 1000)) end
    local target, have, top = need, later and 0 or widle, rest
    if how % 2 == 1 then
      if need == 0 or calls == 0 then target = want end  -- else others may wait for what came back, too
    else
      local likely = use(from, (to + 1) * unit)
      if likely >= 2 then target = min(max(target, need + math.ceil(likely + 1.5 * math.sqrt(likely)) - have), want) end
      local share, part = weight / (max(before - asked, 0) + weight), weight / max(before, weight)
      top = max(need, min(floor(rest * share), max(floor(rest / 4), floor(limit / 10 * part))))
    end
    local take = min(target, rest, top)
    if take < least then take = 0 end
    lacks = take < target
    local waiting, bucket = need, begin
    while take > 0 do
      local n = take
      if bucket < to then
        n = min(take, max(waiting + math.ceil(use(max(from, bucket * unit), (bucket + 1) * unit)) - have, waiting))
        waiting, have = 0, 0
      end
      give(bucket, n)
      take, bucket = take - n, bucket + 1
    end
  end
end
total()
