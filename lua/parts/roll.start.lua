-- start: the arguments. Everything is read and judged before the first write. Text that need not be a number stays text, because Lua
-- is slow at making one of the other.

local call, format, match, floor, min, max = redis.call, string.format, string.match, math.floor, math.min, math.max
local most = 9007199254740991                          -- the largest exact integer of a double

local args = #ARGV
local limiter, limit, length, need, how, within = unpack(ARGV, 1, 6)
limit, length, need, how, within = limit + 0, length + 0, need + 0, how + 0, within + 0
local now
if how % 128 >= 64 then                                -- tests give the time
  now, args = ARGV[args] + 0, args - 1
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
if ARGV[args] ~= '0' and now > ARGV[args] + 0 then return { 1, now } end
local extend = 0
if how >= 128 then extend, args = ARGV[args - 1] + 0, args - 1 end
local want, least, life, seq, wgen, known, widle, pace, after, changes = 0, 0, '0', '0', '0', '0', 0, 0, 0, ''
if args > 7 then
  want, least, life, seq = unpack(ARGV, 7, 10)
  want, least = want + 0, least + 0
end
if args > 11 then
  wgen, known, widle, pace, after, changes = unpack(ARGV, 11, 16)
  widle, pace, after = widle + 0, pace + 0, after + 0
end
