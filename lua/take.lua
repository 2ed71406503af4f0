-- take: charge exactly n tokens, or none.
--
-- KEYS  1 {k}      tokens charged in this window, integer
--       2 {k}:exp  the end of the window, Unix seconds with milliseconds; also its id
-- ARGV  1 n          tokens, 1 to limit
--       2 limit      tokens per window
--       3 length     of a window, ms
--       4 not after  Unix us; later than this do nothing; 0 = whenever
--       5 now        Unix us; empty = the server's clock
-- Reply { flags (1 late, 8 allowed), now us, window ms, left us, remaining }
--
-- Invariant: charged grows by n and stays <= limit, or nothing is written.
-- Not idempotent: never send it a second time once it may have run.

local function fail(what) return redis.error_reply('BADSTATE ' .. what) end
local function text(n) return string.format('%.0f', n) end

local n, limit, length = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(ARGV[5])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local late = tonumber(ARGV[4])
if late > 0 and now > late then return { 1, now, 0, 0, 0 } end

local last = math.ceil(now / 1000) + length
local stop, used = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[1])
local fresh, moved = true, false
if stop and used then
  stop, used = tonumber(stop), tonumber(used)
  if not stop or not (stop >= 0 and stop < 9007199254740) then return fail('the end of the window is not a time') end
  if not used or used ~= math.floor(used) or math.abs(used) > 9007199254740991 then return fail('the count is not an integer') end
  stop, used = math.floor(stop * 1000 + 0.5), math.max(used, 0)
  fresh = stop * 1000 < now
end
if fresh then                                          -- never opened, over, or half of it lost
  stop, used = last, 0
elseif stop > last + math.min(length / 10, 1000) then  -- our clock stepped back: starve no longer than a window
  stop, moved = last, true
end

local allowed = used + n <= limit
if allowed then used = used + n end
if fresh or moved then                                 -- fresh implies allowed, for n <= limit
  local till = text(stop + 1000)
  redis.call('SET', KEYS[2], string.format('%.3f', stop / 1000), 'PXAT', till)
  redis.call('SET', KEYS[1], text(used), 'PXAT', till)
elseif allowed then
  redis.call('SET', KEYS[1], text(used), 'KEEPTTL')
end
return { allowed and 8 or 0, now, stop, stop * 1000 - now, math.max(limit - used, 0) }
