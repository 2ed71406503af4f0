-- check: read a key, charge nothing, write nothing. Runs on a replica too. A replica may
-- still hold windows that are over, so the stored end decides whether one is open.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds; also its id. It expires a length later than the others
-- ARGV  1 limit    tokens per window
--       2 length   of a window, ms
--       3 now      Unix us; empty = the server's clock
-- Reply { flags (0), now us, window ms (0 = none open), remaining,
--         length of the open window ms if it is another one, else 0 }
--
-- Invariant: no write.

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end

local limit, now = tonumber(ARGV[1]), tonumber(ARGV[3])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
if not (stop and used) then return { 0, now, 0, limit, 0 } end
stop, used = tonumber(stop), tonumber(used)
if not stop or not (stop >= 0 and stop < 9007199254740) then return fail('the end of the window is not a time') end
if not used or used ~= math.floor(used) or math.abs(used) > 9007199254740991 then return fail('the count is not an integer') end
stop, used = math.floor(stop * 1000 + 0.5), math.max(used, 0)
if stop * 1000 < now then return { 0, now, 0, limit, 0 } end
local opened = redis.call('PEXPIRETIME', KEYS[2]) - stop - 1000
local length = tonumber(ARGV[2])
if opened <= 0 or opened > 31622401000 or math.abs(opened - length) <= math.min(length / 10, 1000) then opened = 0 end
return { 0, now, stop, math.max(limit - used, 0), opened }
