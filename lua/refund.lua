-- refund: give n tokens back to the window that was charged for them.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds with milliseconds; also its id
-- ARGV  1 n          tokens
--       2 window     that was charged, Unix ms
--       3 not after  Unix us; later than this do nothing; 0 = whenever
--       4 now        Unix us; empty = the server's clock
-- Reply { flags (1 late), now us, refunded }
--
-- Invariant: charged never falls below zero, and no other window is touched.
-- Not idempotent: never send it a second time once it may have run.

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end
local function text(n) return string.format('%.0f', n) end

local n, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(ARGV[4])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = tonumber(ARGV[3])
if late > 0 and now > late then return { 1, now, 0 } end

local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
if not (stop and used) then return { 0, now, 0 } end
stop, used = tonumber(stop), tonumber(used)
if not stop or not (stop >= 0 and stop < 9007199254740) then return fail('the end of the window is not a time') end
if not used or used ~= math.floor(used) or math.abs(used) > 9007199254740991 then return fail('the count is not an integer') end
if math.floor(stop * 1000 + 0.5) ~= window or window * 1000 < now then return { 0, now, 0 } end
local back = math.min(n, math.max(used, 0))
if back > 0 then redis.call('SET', KEYS[1], text(used - back), 'KEEPTTL') end
return { 0, now, back }
