-- ring: undo what nobody has read, and apply what has changed.

if wgen ~= hgen and wgen + 0 > gen then hgen, gen, clients, idle = wgen, wgen + 0, 0, 0 end  -- only clients know it: the store has lost a Reset

local reply, done, had = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, nil, nil }, { }, ring.used
local same = fgen == hgen
local mine = same and flife == life
local left, spare, called = true, 0, false
if same then
  left, called = away ~= '', plus == '+'
  if plus ~= '' and not called then spare = min(plus + 0, idle) end
end
if did ~= '' and mine and fseq > known + 0 then
  local bucket
  for n, times in string.gmatch(did, ' (-?%d+)%*?(%d*)') do
    if not bucket then
      bucket = fasked + n
    else
      for _ = 1, times == '' and 1 or min(times + 0, 31) do
        add(bucket, -n)
        bucket = bucket + 1
      end
    end
  end
end
if changes ~= '' and wgen == hgen and (limiter ~= '' or need == 0) then
  for bucket, n in string.gmatch(changes, '(%d+) (-?%d+)') do
    bucket, n = bucket + 0, n + 0
    if n > 0 then bucket = min(bucket > 0 and bucket or present, present + 10) end
    if n > 0 or mine then add(bucket, n, done) end
  end
end
local gave = ring.used < had
