-- messages: call idle tokens back, or tell others what they should know. They come last, so that a server that refuses
-- writes sends none. A user without the right to PUBLISH has called nobody.

if hold > 0 then return { mute, now, stop, hgen, used, mine, 0, clients, 0, 0, 0, hold * 1000 - now } end
local others = idle - held
local lasted = exhausted > 0 and math.max(exhausted - (stop - length), 1) or 0
if not short and told == 0 and out == 0 then
  if others + lasted == 0 then return { 0, now, stop, hgen, used, mine, grant, clients } end
  return { 0, now, stop, hgen, used, mine, grant, clients, lasted, others }
end

local kind, sample, crowd, again, recalls, sent = 0, 256, 32, false, 1, 0
if short and others > 0 and (need > 0 or calls > 0 or others > math.floor(limit / 100)) then
  kind = 1
elseif short and how % 8 >= 4 and out > 0 and calls < 4 then
  kind, again, calls = 1, true, calls + 1
elseif used >= limit and grant < need and told == 0 and out == 0 and held == 0 then
  kind, told = 2, 1
elseif told > 0 and used < limit and ms - told >= math.min((length - length % 20) / 20, 250) then
  kind, told, sample, crowd = 3, ms, -64, math.max(4, math.min(rest, 32))  -- of some that are drawn with repetition
end
