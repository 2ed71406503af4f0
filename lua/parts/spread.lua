-- spread: grant tokens of the buckets in which the client will use them, while much is free.

local lacks, leaving = false, how % 16 >= 8
local soonest, rest = present, limit - ring.used
if within > 0 then soonest = floor((now + min(within, length * 250)) / unit) end
if rest < 0 then rest = 0 end
if limiter == '' then
  if need > 0 then
    lacks = need > rest
    if not lacks then reply[7], reply[13], reply[14] = need, soonest, add(soonest, need) end
  end
else
  if not left then clients = max(clients - 1, 0) end
  if not leaving then clients = clients + 1 end
  if want > 0 then
    local weight = pace > need and pace or need
    if weight < 1 then weight = 1 end
    if fasked + 0 ~= present then
      fasked, asked = format('%d', present), format('%d', min(asked + weight, most))
    end
    if need == 0 then rest = max(rest - promised, 0) end  -- what was promised is not for those who need nothing yet
    local from, begin, have = now, soonest, widle
    if after >= present then
      begin = max(begin, min(after + 1, present + 10))
      from, have = begin * unit, 0
    end
    local to = begin
    if want > need then to = max(present + min(floor(rest / limit * 60 - 3), 10), begin) end
    local target, top = need, rest
    if how % 2 == 1 then
      if need == 0 or calls == 0 then target = want end  -- else others may wait for what came back, too
    else
      local likely = pace * (((to + 1) * unit - from) / (length * 1000))
      if likely >= 2 then target = min(max(target, need + math.ceil(likely + 1.5 * math.sqrt(likely)) - have), want) end
      local share, part = weight / (max(before - asked, 0) + weight), weight / max(before, weight)
      top = max(need, min(floor(rest * share), max(floor(rest / 4), floor(limit / 10 * part))))
    end
    local take = target
    if take > rest then take = rest end
    if take > top then take = top end
    if take < least then take = 0 end
    lacks = take < target
    reply[7] = take
    local waiting, bucket, at, each = need, begin, 12, math.ceil(pace * (unit / (length * 1000)))
    while take > 0 do
      local n = take
      if n > waiting and bucket < to then
        local likely = each
        if from > bucket * unit then likely = math.ceil(pace * (((bucket + 1) * unit - from) / (length * 1000))) end
        likely = likely > have and waiting + likely - have or waiting
        if likely < n then n = likely end
      end
      waiting, have = 0, 0
      if n > 0 then
        add(bucket, n, done)
        reply[at + 1], reply[at + 2], at = bucket, n, at + 2
      end
      take, bucket = take - n, bucket + 1
    end
  end
end
