-- ring: undo what nobody has read, and apply what has changed.

if wgen > hgen then hgen, clients, idle = wgen, 0, 0 end  -- only clients know it: the store has lost a Reset

local grants, grant, done, first, final = { }, 0, { }, nil, nil
local function note(bucket, n)
  if n == 0 then return end
  done[bucket] = (done[bucket] or 0) + n
  first, final = min(first or bucket, bucket), max(final or bucket, bucket)
end
local function give(bucket, n)
  if n <= 0 then return end
  add(bucket, n)
  note(bucket, n)
  grant = grant + n
  grants[#grants + 1], grants[#grants + 2] = bucket, n
end

local same = fgen == hgen
local mine = same and flife == life
local left, spare, called = true, 0, false
if same then
  left, called = away ~= '', plus == '+'
  if plus ~= '' and not called then spare = min(plus + 0, idle) end
end
if mine and fseq > known then
  local bucket = fasked + ffirst
  for n, times in string.gmatch(did, ' (-?%d+)%*?(%d*)') do
    for _ = 1, times == '' and 1 or min(times + 0, 31) do
      add(bucket, -n)
      bucket = bucket + 1
    end
  end
end
if wgen == hgen and (limiter ~= '' or need == 0) then
  for bucket, n in string.gmatch(changes, '(%d+) (-?%d+)') do
    bucket, n = bucket + 0, n + 0
    if n > 0 then bucket = min(bucket > 0 and bucket or present, present + 10) end
    if n > 0 or mine then note(bucket, add(bucket, n)) end
  end
end
