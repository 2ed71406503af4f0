-- start: the arguments. Everything is read and judged before the first write.

local call, format, match, floor, min, max = redis.call, string.format, string.match, math.floor, math.min, math.max
local most = 9007199254740991                          -- the largest exact integer of a double

local args = #ARGV
local limiter, changes, arg = ARGV[1], ARGV[16], { }
for i = 2, 15 do arg[i] = ARGV[i] + 0 end
local limit, length, need, how, want, least, life, seq, wgen, known, widle, pace, after, within = unpack(arg, 2, 15)
local now
if how >= 64 then                                      -- tests give the time
  now, args = ARGV[args] + 0, args - 1
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
if ARGV[args] ~= '0' and now > ARGV[args] + 0 then return { 1, now } end
