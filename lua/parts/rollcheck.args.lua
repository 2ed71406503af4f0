local call, format, match, floor, min, max = redis.call, string.format, string.match, math.floor, math.min, math.max
local most, limiter, length, now = 9007199254740991, '', ARGV[1] + 0, tonumber(ARGV[3])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
